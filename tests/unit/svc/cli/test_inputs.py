from io import BytesIO
from pathlib import Path
from typing import Any

import click
import pytest

from svc.cli.inputs import read_input

_NONE = BytesIO(b"")


def test_argument_is_taken_as_text_even_when_it_looks_like_json() -> None:
    assert read_input('{"a": 1}', None, (), _NONE) == '{"a": 1}'


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
    assert read_input(None, str(file), (), _NONE) == read
    assert read_input(None, "-", (), BytesIO(content)) == read
    assert read_input(None, None, (), BytesIO(content)) == read


def test_params_join_the_object_and_wrap_a_text_as_input() -> None:
    params = ("max_tokens=64", "stop=[1]", "style=plain words", "empty=", "a=b=c", "rest=NaN")
    added = {"max_tokens": 64, "stop": [1], "style": "plain words", "empty": "", "a": "b=c", "rest": "NaN"}
    assert read_input("hi", None, params, _NONE) == {"input": "hi", **added}
    assert read_input(None, "-", ("x=2",), BytesIO(b'{"x": 1, "y": 3}')) == {"x": 2, "y": 3}


@pytest.mark.parametrize(
    ("text", "file", "params", "stdin", "complaint"),
    [
        ("a", "b", (), b"", "not as both"),
        (None, "/nowhere/at/all", (), b"", "No such file"),
        (None, None, (), b"\xff", "not UTF-8"),
        ("caf\udce9", None, (), b"", "not UTF-8"),
        (None, None, (), b" \n", "empty"),
        (None, None, (), b'{"a": 1,}', "and is none"),
        (None, None, (), b'{"a": 1, "a": 2}', "and is none"),
        ("a", None, ("novalue",), b"", "name=value"),
        ("a", None, ("=5",), b"", "name=value"),
    ],
)
def test_unusable_input_is_a_mistake_of_the_command_line(
    text: str | None, file: str | None, params: tuple[str, ...], stdin: bytes, complaint: str
) -> None:
    with pytest.raises(click.UsageError, match=complaint):
        read_input(text, file, params, BytesIO(stdin))
