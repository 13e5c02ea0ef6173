"""Answers as readable text. An answer with anything other than text or files stays JSON."""

import base64
from typing import Any

import pytest

from svc.core.answers import ReadableAnswer, answer_as_text, read_answer, suffix_of

PNG = b"\x89PNG\r\n\x1a\n"
B64 = base64.b64encode(PNG).decode()


def chat(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


def response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"object": "response", "output": list(items), **more}


MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "Sky"}, {"type": "output_text", "text": "!"}]}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        (chat(content="Sky!"), "Sky!"),
        (chat(content=[{"type": "text", "text": "Sky"}, {"type": "text", "text": "!"}]), "Sky!"),
        (chat(content=None, refusal="I cannot."), "I cannot."),
        ({"choices": [{"text": "Sky!"}]}, "Sky!"),
        (response({"type": "reasoning", "summary": []}, MESSAGE), "Sky!"),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, "--- 1 of 2 ---\na\n--- 2 of 2 ---\nb"),
    ],
)
def test_text_of_chat_completion_and_response_is_read(output: object, text: str) -> None:
    assert read_answer(output).text == text


@pytest.mark.parametrize(
    "output",
    [
        {"input": "echoed"},
        chat(content="I look it up.", tool_calls=[{"id": "1"}]),
        chat(content=""),
        {"choices": [{"text": "a"}, {"message": {"content": None}}]},
        response(MESSAGE, {"type": "function_call", "name": "look"}),
        response(),
        {"data": [{"embedding": [0.5]}]},
        {"data": [{"b64_json": B64}, {"url": "https://a.example"}]},
        {"b64": "no base64!"},
        {"choices": []},
        [1, 2],
        None,
    ],
)
def test_answer_that_holds_more_or_other_things_is_left_as_json(output: object) -> None:
    assert read_answer(output) == ReadableAnswer()


@pytest.mark.parametrize(
    "output",
    [
        {"data": [{"b64_json": B64}]},
        {"b64": B64, "media_type": "image/png"},
        [{"b64": B64, "media_type": "image/png"}],
        response({"type": "image_generation_call", "result": B64}),
    ],
)
def test_files_are_read_wherever_models_put_them(output: object) -> None:
    assert read_answer(output).files == (PNG,)


def test_answer_that_was_cut_at_its_limit_says_so() -> None:
    cut = {"choices": [{"message": {"content": "Sk"}, "finish_reason": "length"}]}
    assert "cut off at its output limit" in str(read_answer(cut).remark)
    cut = response(MESSAGE, incomplete_details={"reason": "max_output_tokens"})
    assert "cut off at its output limit" in str(read_answer(cut).remark)
    assert read_answer(response(MESSAGE)).remark is None


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (PNG, "png"),
        (b"\xff\xd8\xff\xe0", "jpg"),
        (b"RIFF\0\0\0\0WEBP", "webp"),
        (b"\0\0\0\x18ftypmp42", "mp4"),
        (b"\x1aE\xdf\xa3", "webm"),
        (b"what?", "bin"),
    ],
)
def test_files_are_named_by_what_they_hold(content: bytes, suffix: str) -> None:
    assert suffix_of(content) == suffix


def test_json_is_what_is_shown_of_an_answer_without_text() -> None:
    assert answer_as_text({"a": "ü"}, ReadableAnswer()) == '{"a": "ü"}'
