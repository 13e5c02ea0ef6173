"""Destination of an answer: standard output, a file, or a folder for the answer's files."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import attrs
import click

from svc.core.answers import ReadableAnswer, answer_as_text, read_answer, suffix_of
from svc.protected_files import open_atomic


@attrs.frozen
class Destination:
    """Output options of a command. `out` is the file for the answer, and `raw` selects the model's own JSON.

    Files in an answer go to `folder`, otherwise next to `out`, otherwise to the current folder.
    """

    out: Path | None
    folder: Path | None
    raw: bool

    @contextmanager
    def open_for_writing(self) -> Iterator["OpenedDestination"]:
        """Open the destination before any payment. Raises click.UsageError if the destination is not writable."""
        if self.folder is not None:
            try:
                with check_writable(self.folder):
                    pass
            except OSError as error:
                raise not_writable_error(self.folder, error) from None
        with ExitStack() as stack:
            file = None if self.out is None else stack.enter_context(open_output(self.out))
            yield OpenedDestination(self, file)


@attrs.frozen
class OpenedDestination:
    """Destination whose file is open for writing."""

    destination: Destination
    file: IO[bytes] | None

    def write_answer(self, job_id: str, output: Any) -> list[Path]:
        """Write the answer to the destination. Return the paths of the files in the answer."""
        answer = ReadableAnswer() if self.destination.raw else read_answer(output)
        paths = [*self._file_paths(job_id, answer.files)]
        if self.file is not None:
            if answer.files and self.destination.folder is None:
                self.file.write(answer.files[0])
            else:
                self.file.write(answer_as_text(output, answer).encode() + b"\n")
        first_in_file = self.file is not None and self.destination.folder is None
        for path, content in list(zip(paths, answer.files, strict=True))[1 if first_in_file else 0 :]:
            with open_atomic(path) as target:
                target.write(content)
        return paths

    def _file_paths(self, job_id: str, files: tuple[bytes, ...]) -> Iterator[Path]:
        out, folder = self.destination.out, self.destination.folder
        for number, content in enumerate(files, 1):
            if out is not None and folder is None:
                yield out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
            else:
                yield (folder or Path()) / f"job-{job_id[2:10]}-{number}.{suffix_of(content)}"


@contextmanager
def check_writable(folder: Path) -> Iterator[None]:
    """Create a trial file, to check that the folder is writable. Delete the file at the end of the block."""
    probe = folder / ".svc-trial.partial"
    probe.touch(0o600)
    try:
        yield
    finally:
        probe.unlink(missing_ok=True)


def add_destination_options(command: Any) -> Any:
    """Add the options of a destination."""
    path = click.Path(path_type=Path, dir_okay=False)
    folder = click.Path(path_type=Path, file_okay=False)
    for option in (
        click.option("--raw", is_flag=True, help="Show the model's own JSON instead of its text or files."),
        click.option(
            "--out-dir", "folder", type=folder, help="Write images and other files of the answer to this folder."
        ),
        click.option("--out", type=path, help="Write the answer to this file."),
    ):
        command = option(command)
    return command


@contextmanager
def open_output(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. Raises click.UsageError before the block begins."""
    with ExitStack() as stack:
        try:
            target = stack.enter_context(open_atomic(path))
        except OSError as error:
            raise not_writable_error(path, error) from None
        yield target


def not_writable_error(path: Path, error: OSError) -> click.UsageError:
    remedy = "; create the folder first" if isinstance(error, FileNotFoundError) else ""
    return click.UsageError(f"cannot write to {path}: {error.strerror}{remedy}")
