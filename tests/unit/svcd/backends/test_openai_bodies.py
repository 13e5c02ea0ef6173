import pytest

from common.pricing.model_input import Modality
from svcd.backends.openai_request import build_request_body
from svcd.backends.settings import OpenAISettings
from svcd.base.end_reasons import WorkFailed
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
