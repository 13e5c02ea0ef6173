"""Read the input of an order from an argument, a file or standard input."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from common import strict_json
from common.pricing.model_input import IMAGES_ENDPOINT
from common.refusal import Refused
from svc.records import Model

STDIN: Final = "-"

Input = str | dict[str, Any]


def read_input(text: str | None, file: str | None, stdin: BinaryIO) -> Input:
    """Return the input as a text, or as an object in the model's own form.

    A file or standard input that holds one JSON object is read as an object. Other content is read as text. Raises
    click.UsageError.
    """
    if text is not None and file is not None:
        raise click.UsageError("give the input as an argument or as a file, not both")
    if text is not None and text != STDIN:
        try:
            text.encode()
        except UnicodeEncodeError:  # Python decodes invalid bytes of arguments as surrogates
            raise click.UsageError("the input is not UTF-8 text") from None
        return text
    if text is None and file is None and stdin.isatty():
        raise click.UsageError("no input: give it as an argument, with --file, or on standard input")
    return _parse_text_or_object(read_bytes(file or STDIN, stdin), file or "standard input")


def input_from_text(text: str, model: Model) -> dict[str, Any]:
    """Return the input object for a text, under the key that the model's schema lists for it.

    For a model that makes images, the number of images is set to 1, because the price depends on this number.
    """
    schema = model.svc.params_schema or {}
    listed = schema.get("properties")
    properties = listed if isinstance(listed, dict) else {}
    endpoint = model.svc.endpoint
    makes_images = endpoint == IMAGES_ENDPOINT or (endpoint is None and "num_images" in properties)
    keys = ("prompt", "input", "messages") if makes_images else ("input", "prompt", "messages")
    default = "prompt" if makes_images else "input"
    key = next((key for key in keys if properties.get(key, False) is not False), default)
    content = [{"role": "user", "content": text}] if key == "messages" else text
    return {key: content, "num_images": 1} if makes_images else {key: content}


def read_bytes(file: str, stdin: BinaryIO) -> bytes:
    """Read a file or standard input. Drop a UTF-8 BOM, because JSON after a BOM would be read as plain text."""
    try:
        return (stdin.read() if file == STDIN else Path(file).read_bytes()).removeprefix(BOM_UTF8)
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None


def _parse_text_or_object(raw: bytes, name: str) -> Input:
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
    except Refused as error:
        # Text may start with a brace, but broken JSON must not be ordered as text.
        raise click.UsageError(f"{name} starts with {{ but is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise AssertionError("JSON that starts with a brace is an object")
    return parsed


def read_param(param: str) -> tuple[str, Any]:
    """Read `name=value`. A value that is valid JSON is parsed; any other is a text."""
    name, equals, value = param.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--param {param}: expected name=value")
    try:
        return name, strict_json.parse(value.encode("utf-8", "surrogatepass"))
    except Refused:
        return name, value
