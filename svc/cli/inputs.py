"""What a model is to work on: from an argument, a file or standard input."""

from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from common import strict_json
from common.refusal import Refused

STDIN: Final = "-"

Input = str | dict[str, Any]


def read_input(text: str | None, file: str | None, params: Sequence[str], stdin: BinaryIO) -> Input:
    """A text, or an object that is the model's own input.

    A file (or standard input) that holds one JSON object is that object; anything else is text. `params`, each
    `name=value`, are added to the object; a text goes into it as `input` then. Raises click.UsageError.
    """
    given = _given(text, file, stdin)
    if not params:
        return given
    wrapped = {"input": given} if isinstance(given, str) else given
    return wrapped | dict(_param(param) for param in params)


def read_bytes(file: str, stdin: BinaryIO) -> bytes:
    """Without the mark that some editors put before UTF-8: behind it JSON would be taken, and bought, as a text."""
    try:
        return (stdin.read() if file == STDIN else Path(file).read_bytes()).removeprefix(BOM_UTF8)
    except OSError as trouble:
        raise click.UsageError(f"{file}: {trouble.strerror}") from None


def _given(text: str | None, file: str | None, stdin: BinaryIO) -> Input:
    if text is not None and file is not None:
        raise click.UsageError("give the input as an argument or as a file, not as both")
    if text is not None and text != STDIN:
        try:
            text.encode()
        except UnicodeEncodeError:  # how Python passes on bytes of arguments that it cannot read
            raise click.UsageError("the input is not UTF-8 text") from None
        return text
    if text is None and file is None and stdin.isatty():
        raise click.UsageError("no input: give it as an argument, with --file, or on standard input")
    return _text_or_object(read_bytes(file or STDIN, stdin), file or "standard input")


def _text_or_object(raw: bytes, name: str) -> Input:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"{name} is not UTF-8 text") from None
    if not text.strip():
        raise click.UsageError(f"{name} is empty")
    if not text.lstrip().startswith("{"):
        return text.removesuffix("\n").removesuffix("\r")
    try:
        parsed = strict_json.parse(raw)
    except Refused as wrong:
        # A text may open with a brace; an object that misses a comma should not be sold as one.
        raise click.UsageError(f"{name} opens like a JSON object and is none: {wrong}") from None
    if not isinstance(parsed, dict):
        raise AssertionError("a JSON text that opens with a brace is an object")
    return parsed


def _param(param: str) -> tuple[str, Any]:
    """A value that reads as JSON is that value: numbers, true, lists; any other is a text."""
    name, equals, value = param.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--param {param}: write it as name=value")
    try:
        return name, strict_json.parse(value.encode("utf-8", "surrogatepass"))
    except Refused:
        return name, value
