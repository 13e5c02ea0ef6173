import time

import pytest

from common.pricing.model_input import Modality
from svcd.backends.attempts import TryAgain
from svcd.backends.openai_request import build_request_body
from svcd.backends.openai_streams import ChatAssembler, ResponsesAssembler
from svcd.backends.openai_usage import read_work_output
from svcd.backends.settings import OpenAISettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import WorkOutput
from tests.support.fakes.backend_settings import read_backend
from tests.support.fakes.provider_work import work_on


def settings(api: str, **entries: object) -> OpenAISettings:
    read = read_backend({"kind": "openai", "api": api, "base_url": "http://host", **entries})
    assert isinstance(read, OpenAISettings)
    return read


@pytest.mark.parametrize(
    ("api", "name"), [("responses", "max_output_tokens"), ("chat", "max_tokens")], ids=["responses", "chat"]
)
@pytest.mark.parametrize(
    ("limits", "cap"),
    [
        ({}, 100),
        ({"max_tokens": 5000}, 100),
        ({"max_tokens": 70, "max_output_tokens": 60, "max_completion_tokens": 80}, 60),
        ({"max_tokens": 0, "max_completion_tokens": 8.0}, 8),
    ],
)
def test_output_is_limited_by_order_and_client(api: str, name: str, limits: dict[str, object], cap: int) -> None:
    body = build_request_body(settings(api), work_on({"input": "hi", **limits}))
    assert {key: value for key, value in body.items() if key.startswith("max_")} == {name: cap}


def test_several_answers_share_the_paid_units() -> None:
    assert build_request_body(settings("chat"), work_on({"input": "hi", "n": 3}))["max_tokens"] == 33


@pytest.mark.parametrize(
    "model_input",
    [{"input": "hi", "n": 101}, {"input": "hi", "n": "2"}, {"input": "hi", "max_tokens": -1}, {"input": [1]}, {}],
    ids=["more answers than units", "text for a number", "negative", "no messages", "nothing"],
)
def test_unusable_input_is_the_clients_fault(model_input: dict[str, object]) -> None:
    with pytest.raises(WorkFailed) as failed:
        build_request_body(settings("chat"), work_on(model_input))
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_error", False)


def test_providers_parameters_override_the_clients() -> None:
    model_input = {
        "input": "x",
        "stream": False,
        "background": True,
        "store": True,
        "seed": 1,
        "model": "other",
        "user": "u",
    }
    chosen = settings("responses", extra={"seed": 2}, models={"market/model": "local"}, drop=["user"])
    assert build_request_body(chosen, work_on(model_input)) == {
        "input": "x",
        "seed": 2,
        "model": "local",
        "stream": True,
        "max_output_tokens": 100,
    }


@pytest.mark.parametrize(
    "model_input",
    [
        {"input": "x", "previous_response_id": "resp_1"},
        {"input": "x", "conversation": "conv_1"},
        {"input": "x", "prompt": {"id": "pmpt_1"}},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
        {"input": [{"type": "item_reference", "id": "rs_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.1/"}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        {"input": "x", "tools": [{"type": "mcp", "server_url": "http://10.0.0.1/"}]},
        {"input": "x", "tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    ],
)
def test_what_a_server_keeps_or_would_fetch_cannot_be_named(model_input: dict[str, object]) -> None:
    with pytest.raises(WorkFailed) as failed:
        build_request_body(settings("responses"), work_on(model_input))
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_error", False)


def test_inline_data_and_texts_with_urls_pass() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "http://x"},
    ]
    schema = {"type": "object", "properties": {"url": {"type": "string"}, "file_id": {"type": "string"}}}
    model_input: dict[str, object] = {
        "messages": [{"role": "user", "content": parts}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    assert build_request_body(settings("chat"), work_on(model_input))["messages"] == model_input["messages"]


def test_a_provider_may_let_its_server_fetch() -> None:
    model_input: dict[str, object] = {"input": [{"type": "input_image", "image_url": "https://example.org/a.png"}]}
    body = build_request_body(settings("responses", outside_references=True), work_on(model_input))
    assert body["input"] == model_input["input"]


def test_a_text_with_instructions_becomes_a_conversation() -> None:
    body = build_request_body(settings("chat", stream=False), work_on({"input": "hi", "instructions": "be brief"}))
    assert body == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_tokens": 100,
        "model": "market/model",
    }


@pytest.mark.parametrize(
    ("model_input", "size"),
    [
        ({"width": 640}, "640x1024"),
        ({"resolution": "720p", "aspect_ratio": "9:16"}, "720x1280"),
        ({"resolution": "480p", "aspect_ratio": "adaptive"}, "854x480"),
        ({"size": "512x512", "width": 1, "height": 1}, "512x512"),
        ({}, None),
    ],
)
def test_an_images_frame_and_number_are_said_in_the_routes_words(
    model_input: dict[str, object], size: str | None
) -> None:
    work = work_on({"input": "a cat", "num_images": 2, **model_input}, modality="image")
    body = build_request_body(settings("images"), work)
    expected = {"prompt": "a cat", "n": 2, "response_format": "b64_json", "model": "market/model"}
    assert body == expected | ({"size": size} if size else {})


@pytest.mark.parametrize(
    ("api", "modality", "model_input", "reason"),
    [
        ("chat", "image", {"prompt": "x"}, "media_input_refused"),
        ("images", "video", {"prompt": "x"}, "media_input_refused"),
        ("images", "image", {"prompt": "x", "image": {"b64": "AAAA"}}, "media_input_refused"),
        ("embeddings", "text", {"input": "x"}, "backend_error"),
    ],
)
def test_work_that_has_no_place_at_the_route_is_refused(
    api: str, modality: Modality, model_input: dict[str, object], reason: str
) -> None:
    with pytest.raises(WorkFailed) as failed:
        build_request_body(settings(api), work_on(model_input, modality=modality))
    assert (failed.value.reason, failed.value.backend_fault) == (reason, False)


CHAT = {"model": "/models/secret-path", "choices": [{"message": {"content": "x" * 40}}]}


@pytest.mark.parametrize(
    ("usage", "counted", "charged"),
    [
        ({"completion_tokens": 42}, 7, 42),
        ({"completion_tokens": 900}, 7, 100),
        (None, 7, 7),
        ({}, 900, 100),
        ({}, 0, 14),
    ],
    ids=["the server's count", "never above the order", "pieces of the stream", "pieces above the order", "by length"],
)
def test_text_is_charged_by_the_best_count_there_is(
    usage: dict[str, object] | None, counted: int, charged: int
) -> None:
    output = read_work_output("chat", work_on(), CHAT | {"usage": usage}, counted)
    assert output.completion_tok == charged
    assert output.usage["completion_tokens"] == (usage or {}).get("completion_tokens", counted or 14)


def test_the_model_keeps_its_name_of_the_market() -> None:
    output = read_work_output("chat", work_on(), CHAT, 1).output
    assert isinstance(output, dict)
    assert output["model"] == "market/model"


def test_embeddings_have_no_output_units() -> None:
    answer: dict[str, object] = {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}}
    assert read_work_output("embeddings", work_on(modality="embeddings"), answer, 0) == WorkOutput(
        answer, 0, {"prompt_tokens": 3}
    )


@pytest.mark.parametrize(("images", "charged"), [(1, 50), (2, 100), (3, 100)])
def test_images_are_charged_as_many_as_came(images: int, charged: int) -> None:
    answer: dict[str, object] = {"data": [{"b64_json": "AAAA"}] * images}
    work = work_on({"prompt": "x", "num_images": 2}, modality="image")
    assert read_work_output("images", work, answer, 0).completion_tok == charged


def test_images_only_by_address_are_the_providers_fault() -> None:
    with pytest.raises(WorkFailed) as failed:
        read_work_output(
            "images", work_on({"prompt": "x"}, modality="image"), {"data": [{"url": "http://inside/1.png"}]}, 0
        )
    assert failed.value.backend_fault


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
