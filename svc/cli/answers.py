"""Answers of models as a person reads them: the text of chats and responses, images and clips as files.

    chat, completion     choices[].message.content, a text or parts with text; choices[].text
    response             output[].content[].text of its messages; images that a tool made
    file                 {b64_json} or {b64, media_type}: alone, in a list, or in `data`
    anything else        the model's own JSON

An answer that holds more than its text or files (a call of a tool, say) is shown as JSON: nothing that was paid for is
left out. `--raw` gives the JSON in any case.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

import attrs
import click

from common.refusal import Refused
from common.scalars import read_base64
from svc.cli.output import not_writable, written
from svc.files import appearing
from svc.wire.transport import LONGEST_CONTENT

_MAGIC: Final = (
    *((0, b"\x89PNG", "png"), (0, b"\xff\xd8\xff", "jpg"), (0, b"GIF8", "gif"), (8, b"WEBP", "webp")),
    *((8, b"WAVE", "wav"), (0, b"OggS", "ogg"), (0, b"ID3", "mp3"), (0, b"fLaC", "flac"), (0, b"%PDF", "pdf")),
    *((4, b"ftypavif", "avif"), (4, b"ftyp", "mp4"), (0, b"\x1aE\xdf\xa3", "webm")),
)
_CUT: Final = frozenset({"length", "max_output_tokens"})


@attrs.frozen
class Answer:
    """Text or files; neither where it is for a program. `remark`: what the text alone would not tell."""

    text: str | None = None
    files: tuple[bytes, ...] = ()
    remark: str | None = None


def read_answer(output: Any) -> Answer:
    """
    >>> read_answer({"choices": [{"message": {"role": "assistant", "content": "Because."}}]}).text
    'Because.'
    """
    if isinstance(output, str):
        return Answer(output)
    files = _files(output)
    if files:
        return Answer(files=files)
    if isinstance(output, Mapping):
        if isinstance(output.get("choices"), list):
            return _chat(output["choices"])
        if isinstance(output.get("output"), list):
            return _response(output)
    return Answer()


def _chat(choices: list[Any]) -> Answer:
    texts = [_choice(choice) for choice in choices]
    said = [text for text in texts if text is not None]
    if not said or len(said) < len(texts):
        return Answer()
    ends = [choice.get("finish_reason") for choice in choices]
    if len(said) > 1:
        said = [f"--- {number} of {len(said)} ---\n{text}" for number, text in enumerate(said, 1)]
    return Answer("\n".join(said), remark=_cut(next((end for end in ends if end in _CUT), None)))


def _choice(choice: Any) -> str | None:
    """None for one that holds no text, or more than text."""
    if not isinstance(choice, Mapping):
        return None
    message = choice.get("message")
    if not isinstance(message, Mapping):
        text = choice.get("text")
        return text if isinstance(text, str) else None
    if any(message.get(name) for name in ("tool_calls", "function_call", "audio")):
        return None
    content = message.get("content") or message.get("refusal")
    return _parts(content) if isinstance(content, list) else content if isinstance(content, str) else None


def _response(output: Mapping[str, Any]) -> Answer:
    texts: list[str] = []
    files: tuple[bytes, ...] = ()
    for item in output["output"]:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "message" and isinstance(item.get("content"), list):
            text = _parts(item["content"])
            if text is None:
                return Answer()
            texts.append(text)
        elif kind == "image_generation_call" and (made := _file({"b64": item.get("result")})):
            files += (made,)
        elif kind != "reasoning":
            return Answer()
    if not texts and not files:
        return Answer()
    details = output.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    return Answer("\n".join(texts) if texts else None, files, _cut(reason))


def _parts(parts: list[Any]) -> str | None:
    texts = []
    for part in parts:
        text = (part.get("text") or part.get("refusal")) if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts) if texts else None


def _cut(reason: object) -> str | None:
    if reason not in _CUT:
        return None
    return f"the answer ends at the limit of its output ({reason}): -p max_output_tokens=N buys more"


def _files(output: Any) -> tuple[bytes, ...]:
    """Every one of them, or none."""
    if isinstance(output, Mapping) and isinstance(output.get("data"), list):
        output = output["data"]
    each = output if isinstance(output, list) else [output]
    files = [_file(one) for one in each]
    return tuple(file for file in files if file is not None) if None not in files else ()


def _file(one: Any) -> bytes | None:
    if not isinstance(one, Mapping):
        return None
    text = one.get("b64_json") or one.get("b64")
    try:
        return read_base64(text, LONGEST_CONTENT, "file") if isinstance(text, str) and text else None
    except Refused:
        return None


def suffix_of(content: bytes) -> str:
    """
    >>> suffix_of(bytes.fromhex("89504e470d0a1a0a"))
    'png'
    """
    return next((suffix for at, magic, suffix in _MAGIC if content[at : at + len(magic)] == magic), "bin")


# Where an answer goes: standard output, a file, or a folder for the files that it holds.


@attrs.frozen
class Place:
    """`out` takes the answer itself; files of an answer go to `folder`, else to `out` or the present folder."""

    out: Path | None
    folder: Path | None
    raw: bool

    @contextmanager
    def opened(self) -> Iterator["OpenedPlace"]:
        """Before anything is paid: where nothing can be written is a mistake of the command line."""
        if self.folder is not None:
            try:
                with appearing_and_gone(self.folder):
                    pass
            except OSError as error:
                raise not_writable(self.folder, error) from None
        with ExitStack() as stack:
            file = None if self.out is None else stack.enter_context(written(self.out))
            yield OpenedPlace(self, file)


@attrs.frozen
class OpenedPlace:
    place: Place
    file: IO[bytes] | None

    def fill(self, job_id: str, output: Any) -> list[Path]:
        """Write what belongs into files; the paths of the answer's own ones."""
        answer = Answer() if self.place.raw else read_answer(output)
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


def as_text(output: Any, answer: Answer) -> str:
    """The text of an answer; the model's JSON where it has none."""
    if answer.text is not None:
        return answer.text
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def takes_place(command: Any) -> Any:
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
