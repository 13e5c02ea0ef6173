import time

import pytest

from svcd.backends.attempts import TryAgain
from svcd.backends.openai_streams import ChatAssembler, ResponsesAssembler
from svcd.base.end_reasons import WorkFailed


def chunk(delta: dict[str, object], index: int = 0, **rest: object) -> dict[str, object]:
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": index, "delta": delta, **rest}]}


def test_streamed_chat_equals_the_unstreamed_body() -> None:
    assembler = ChatAssembler()
    for event in (
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}, logprobs={"content": [{"token": "Hel"}]}),
        chunk({"content": "lo"}, logprobs={"content": [{"token": "lo"}]}),
        chunk({"content": "B"}, index=1),
        chunk(
            {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a'}}]}
        ),
        chunk({"tool_calls": [{"index": 0, "id": None, "function": {"arguments": '":1}'}}]}),
        chunk({}, finish_reason="stop"),
        chunk({}, index=1, finish_reason="length"),
        {"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 5}},
    ):
        assembler.add_event(event)
    assembler.end()
    assert assembler.answer() == {
        "id": "c1",
        "object": "chat.completion",
        "usage": {"completion_tokens": 5},
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "tool_calls": [
                        {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                    ],
                },
                "logprobs": {"content": [{"token": "Hel"}, {"token": "lo"}]},
                "finish_reason": "stop",
            },
            {"index": 1, "message": {"role": "assistant", "content": "B"}, "finish_reason": "length"},
        ],
    }
    assert assembler.event_count == 5


def test_chat_is_complete_when_ended_or_all_choices_finish() -> None:
    assembler = ChatAssembler()
    assembler.add_event(chunk({"content": "a"}))
    assert assembler.answer() is None
    assembler.add_event(chunk({}, finish_reason="stop"))
    assert assembler.answer() is not None


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete"])
def test_a_response_is_its_last_event(last: str) -> None:
    assembler = ResponsesAssembler()
    assembler.add_event({"type": "response.created", "response": {"status": "in_progress"}})
    assembler.add_event({"type": "response.output_text.delta", "delta": "a"})
    assembler.add_event({"type": "response.reasoning_text.delta", "delta": "b"})
    assert assembler.answer() is None
    assembler.add_event({"type": last, "response": {"output": []}})
    assert (assembler.answer(), assembler.event_count) == ({"output": []}, 2)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "m"},
        {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}},
        {"type": "response.completed"},
    ],
)
def test_an_error_inside_of_a_stream_is_tried_again(event: dict[str, object]) -> None:
    with pytest.raises(TryAgain):
        ResponsesAssembler().add_event(event)


@pytest.mark.parametrize("error", [{"code": 400}, {"code": "422"}, {"type": "BadRequestError"}])
def test_stream_error_that_blames_the_input_ends_the_job(error: dict[str, object]) -> None:
    with pytest.raises(WorkFailed) as failed:
        ChatAssembler().add_event({"error": error})
    assert failed.value.backend_fault is False


def test_pieces_that_nest_without_end_are_an_attempt_that_failed() -> None:
    delta: dict[str, object] = {}
    for _ in range(50_000):
        delta = {"a": [{"index": 1, "b": delta}]}
    with pytest.raises(TryAgain, match="nests too deep"):
        ChatAssembler().add_event(chunk(delta))


def test_many_indexed_tool_calls_take_linear_time() -> None:
    assembler = ChatAssembler()
    began = time.process_time()
    for start in range(0, 20_000, 2):
        assembler.add_event(chunk({"tool_calls": [{"index": start}, {"index": start + 1}]}))
    assert time.process_time() - began < 5  # searching the list for each call would take four times as long
    assembler.end()
    (choice,) = (assembler.answer() or {})["choices"]
    assert len(choice["message"]["tool_calls"]) == 20_000


def test_error_code_of_thousands_of_digits_is_retried() -> None:
    with pytest.raises(TryAgain):
        ChatAssembler().add_event({"error": {"code": "1" * 5000}})
