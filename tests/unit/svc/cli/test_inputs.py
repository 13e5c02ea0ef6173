from io import BytesIO
from pathlib import Path
from typing import Any

import click
import pytest

from svc.cli.inputs import input_from_text, read_input, read_param
from svc.records import Model, ModelDetails

_NONE = BytesIO(b"")


def test_argument_is_taken_as_text_even_when_it_looks_like_json() -> None:
    assert read_input('{"a": 1}', None, _NONE) == '{"a": 1}'


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"two\nlines\n", "two\nlines"),
        (b'[1, "a list is a text"]', '[1, "a list is a text"]'),
        (b' {"messages": ["hi"], "max_tokens": 5}\n', {"messages": ["hi"], "max_tokens": 5}),
        (b'\xef\xbb\xbf{"messages": ["hi"]}\r\n', {"messages": ["hi"]}),
        (b"\xef\xbb\xbftwo\r\nlines\r\n", "two\r\nlines"),
    ],
)
def test_file_is_an_object_when_it_is_one_and_text_otherwise(tmp_path: Path, content: bytes, read: Any) -> None:
    file = tmp_path / "input"
    file.write_bytes(content)
    assert read_input(None, str(file), _NONE) == read
    assert read_input(None, "-", BytesIO(content)) == read
    assert read_input(None, None, BytesIO(content)) == read


@pytest.mark.parametrize(
    ("param", "read"),
    [
        ("max_tokens=64", ("max_tokens", 64)),
        ("stop=[1]", ("stop", [1])),
        ("style=plain words", ("style", "plain words")),
        ("empty=", ("empty", "")),
        ("a=b=c", ("a", "b=c")),
        ("rest=NaN", ("rest", "NaN")),
    ],
)
def test_param_is_json_where_it_reads_as_json(param: str, read: tuple[str, Any]) -> None:
    assert read_param(param) == read


@pytest.mark.parametrize("param", ["novalue", "=5"])
def test_param_without_a_name_and_a_value_is_refused(param: str) -> None:
    with pytest.raises(click.UsageError, match="name=value"):
        read_param(param)


def model(endpoint: str | None = None, *listed: str) -> Model:
    schema = {"properties": {key: {"type": "string"} for key in listed} | {"stream": False}} if listed else None
    return Model("m", "x", ModelDetails(3, True, schema, endpoint))


MESSAGES = {"messages": [{"role": "user", "content": "a cat"}]}
IMAGES = "/v1/images/generations"


@pytest.mark.parametrize(
    ("of", "made"),
    [
        (model(), {"input": "a cat"}),
        (model("/v1/responses", "prompt", "input"), {"input": "a cat"}),
        (model("/v1/chat/completions", "messages", "seed"), MESSAGES),
        (model(None, "prompt"), {"prompt": "a cat"}),
        (model(None, "prompt", "num_images"), {"prompt": "a cat", "num_images": 1}),
        (model(IMAGES), {"prompt": "a cat", "num_images": 1}),
        (model(IMAGES, "input", "num_images"), {"input": "a cat", "num_images": 1}),
        (model(None, "other"), {"input": "a cat"}),
    ],
)
def test_text_goes_under_the_key_of_the_models_schema(of: Model, made: dict[str, Any]) -> None:
    assert input_from_text("a cat", of) == made


@pytest.mark.parametrize(
    ("text", "file", "stdin", "complaint"),
    [
        ("a", "b", b"", "not both"),
        (None, "/nowhere/at/all", b"", "No such file"),
        (None, None, b"\xff", "not UTF-8"),
        ("caf\udce9", None, b"", "not UTF-8"),
        (None, None, b" \n", "empty"),
        (None, None, b'{"a": 1,}', "is not valid JSON"),
        (None, None, b'{"a": 1, "a": 2}', "is not valid JSON"),
    ],
)
def test_unusable_input_is_a_mistake_of_the_command_line(
    text: str | None, file: str | None, stdin: bytes, complaint: str
) -> None:
    with pytest.raises(click.UsageError, match=complaint):
        read_input(text, file, BytesIO(stdin))
