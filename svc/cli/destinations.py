"""Destination of an answer: standard output, a file, or a folder for the files that it holds."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import attrs
import click

from svc.cli.answers import ReadableAnswer, as_text, read_answer, suffix_of
from svc.own_files import appearing


@attrs.frozen
class Destination:
    """`out` takes the answer itself; files of an answer go to `folder`, else to `out` or the present folder."""

    out: Path | None
    folder: Path | None
    raw: bool

    @contextmanager
    def opened(self) -> Iterator["OpenedDestination"]:
        """Before anything is paid: where nothing can be written is a mistake of the command line."""
        if self.folder is not None:
            try:
                with appearing_and_gone(self.folder):
                    pass
            except OSError as error:
                raise not_writable(self.folder, error) from None
        with ExitStack() as stack:
            file = None if self.out is None else stack.enter_context(written(self.out))
            yield OpenedDestination(self, file)


@attrs.frozen
class OpenedDestination:
    place: Destination
    file: IO[bytes] | None

    def fill(self, job_id: str, output: Any) -> list[Path]:
        """Write what belongs into files; the paths of the answer's own ones."""
        answer = ReadableAnswer() if self.place.raw else read_answer(output)
        paths = [*self._names(job_id, answer.files)]
        if self.file is not None:
            if answer.files and self.place.folder is None:
                self.file.write(answer.files[0])
            else:
                self.file.write(as_text(output, answer).encode() + b"\n")
        taken = self.file is not None and self.place.folder is None
        for path, content in list(zip(paths, answer.files, strict=True))[1 if taken else 0 :]:
            with appearing(path) as target:
                target.write(content)
        return paths

    def _names(self, job_id: str, files: tuple[bytes, ...]) -> Iterator[Path]:
        out, folder = self.place.out, self.place.folder
        for number, content in enumerate(files, 1):
            if out is not None and folder is None:
                yield out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
            else:
                yield (folder or Path()) / f"job-{job_id[2:10]}-{number}.{suffix_of(content)}"


@contextmanager
def appearing_and_gone(folder: Path) -> Iterator[None]:
    """A file in a folder for as long as the block runs: the folder is there and takes files."""
    trial = folder / ".svc-trial.partial"
    trial.touch(0o600)
    try:
        yield
    finally:
        trial.unlink(missing_ok=True)


def takes_destination(command: Any) -> Any:
    """Adds the options of where an answer goes."""
    path = click.Path(path_type=Path, dir_okay=False)
    folder = click.Path(path_type=Path, file_okay=False)
    for option in (
        click.option("--raw", is_flag=True, help="The model's own JSON, not the text or files that are in it."),
        click.option("--out-dir", "folder", type=folder, help="The folder for images and other files of the answer."),
        click.option("--out", type=path, help="Write the answer to a file instead."),
    ):
        command = option(command)
    return command


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """The file to write to. Where there can be none is a mistake of the command line, found before the block begins."""
    with ExitStack() as opened:
        try:
            target = opened.enter_context(appearing(path))
        except OSError as error:
            raise not_writable(path, error) from None
        yield target


def not_writable(path: Path, error: OSError) -> click.UsageError:
    remedy = "; make the folder first" if isinstance(error, FileNotFoundError) else ""
    return click.UsageError(f"{path}: {error.strerror}{remedy}")
