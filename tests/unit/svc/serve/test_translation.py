"""Translation between the two routes of text: requests and answers in both directions, and unsupported requests."""

import json
from typing import Any, Final

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.quotes import FeeTerms
from svc.records import Model, ModelDetails
from svc.serve.answers import build_answer, build_completion, build_response
from svc.serve.as_chat import to_chat_input
from svc.serve.as_responses import to_responses_input
from svc.serve.chat_to_response import chat_to_response
from svc.serve.events import build_events
from svc.serve.media_answers import BoughtAnswer
from svc.serve.problems import Problem
from svc.serve.requests import AnswerForm, AnswerRequest, Route, read_request
from svc.serve.response_to_chat import response_to_chat
from svc.serve.settings import ServeSettings

IMAGE = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "a seal"},
    ],
    "max_completion_tokens": 64,
    "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}},
    "reasoning_effort": "low",
    "temperature": 0.5,
}
RESPONSES: dict[str, Any] = {
    "input": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is it?"},
                {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a seal"},
    ],
    "max_output_tokens": 64,
    "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}],
    "tool_choice": {"type": "function", "name": "look"},
    "text": {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}},
    "reasoning": {"effort": "low"},
    "temperature": 0.5,
}


def test_chat_becomes_the_responses_request_of_the_same_meaning() -> None:
    assert to_responses_input(CHAT, ()) == RESPONSES


def test_responses_request_becomes_the_chat_of_the_same_meaning() -> None:
    made = to_chat_input(RESPONSES, ())
    image = {"type": "image_url", "image_url": {"url": IMAGE, "detail": "auto"}}
    user = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": False}}
    messages = [CHAT["messages"][0], user, *CHAT["messages"][2:]]
    assert made == {**CHAT, "messages": messages, "tools": [tool]}


def test_calls_that_follow_one_another_are_one_message_of_a_chat() -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": "{}"} for n in (1, 2)]
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
    made = to_chat_input({"input": [{"role": "user", "content": "?"}, said, *calls]}, ())
    assert [message["role"] for message in made["messages"]] == ["user", "assistant"]
    assert made["messages"][1]["content"] == "Let me see."
    assert [call["id"] for call in made["messages"][1]["tool_calls"]] == ["c1", "c2"]


def test_texts_stay_texts_for_both_routes() -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}, {"role": "assistant", "content": "hi"}]
    assert to_responses_input({"messages": said}, ())["input"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]
    assert to_chat_input({"input": "hello", "instructions": "Be brief."}, ())["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


@pytest.mark.parametrize("name", ["seed", "stop", "logit_bias", "n", "frequency_penalty", "logprobs"])
def test_unsupported_parameter_is_refused_unless_neutral(name: str) -> None:
    nothing: dict[str, Any] = {"stop": [], "logit_bias": {}, "n": 1, "frequency_penalty": 0, "logprobs": False}
    if name in nothing:
        assert name not in to_responses_input({**CHAT, name: nothing[name]}, ())
    with pytest.raises(Problem) as refused:
        to_responses_input({**CHAT, name: {"1": 1} if name == "logit_bias" else 2}, ())
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "unsupported_parameter", name)


def test_parameter_that_the_model_lists_is_passed_on() -> None:
    assert to_responses_input({**CHAT, "seed": 7}, {"seed"})["seed"] == 7
    assert to_chat_input({"input": "a", "seed": 7}, {"seed"})["seed"] == 7


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
    ],
)
def test_part_without_a_chat_equivalent_is_refused(changed: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as refused:
        to_chat_input({"input": "hello", **changed}, ())
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param)


COMPLETION: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
        }
    ]
}


def test_answers_of_either_route_hold_the_same_text_and_calls() -> None:
    made = chat_to_response(COMPLETION)
    assert [item["type"] for item in made["output"]] == ["message", "function_call"]
    (choice,) = response_to_chat({**made, "status": "completed"})["choices"]
    assert choice["message"]["content"] == "Let me see."
    assert choice["message"]["tool_calls"] == COMPLETION["choices"][0]["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("reason", "ended"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
def test_answer_that_was_cut_says_so_on_either_route(reason: str, ended: str) -> None:
    cut = {"output": [], "status": "incomplete", "incomplete_details": {"reason": reason}}
    assert response_to_chat(cut)["choices"][0]["finish_reason"] == ended
    chat = {"choices": [{"message": {"content": "so f"}, "finish_reason": ended}]}
    assert chat_to_response(chat)["incomplete_details"] == {"reason": reason}


def wanted(route: Route, **input_: Any) -> AnswerRequest:
    model = Model("demo/text", "demo", ModelDetails(1, True, None, "/v1/responses"))
    return AnswerRequest(route, "asked-for", model, ServeSettings().rule_for(None), input_, AnswerForm())


def bought(output: Any, **usage: int) -> BoughtAnswer:
    return BoughtAnswer("0x" + "ab" * 32, 7, 10, 5, FeeTerms(0, 0), 1_700_000_000, output, usage)


@pytest.mark.parametrize(
    ("output", "text"), [({"text": "x"}, '{"text":"x"}'), ("a text", "a text"), (["a", 1], '["a",1]')]
)
def test_output_of_no_known_shape_comes_as_its_json(output: object, text: str) -> None:
    chat = build_completion(wanted("/v1/chat/completions"), bought(output))["choices"][0]["message"]["content"]
    made = build_response(wanted("/v1/responses"), bought(output))["output"][0]["content"][0]["text"]
    assert chat == made == text


def test_usage_is_the_providers_count_in_the_words_of_the_route() -> None:
    chat = build_completion(wanted("/v1/chat/completions"), bought(COMPLETION, input_tokens=4, output_tokens=2))
    made = build_response(wanted("/v1/responses"), bought(COMPLETION, prompt_tokens=4, completion_tokens=2))
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"], chat["usage"]["total_tokens"]) == (
        4,
        2,
        6,
    )
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"], made["usage"]["total_tokens"]) == (4, 2, 6)


def test_response_repeats_the_requests_own_fields() -> None:
    model = Model("demo/chat", "demo", ModelDetails(2, True, None, "/v1/chat/completions"))
    named = {"tools": RESPONSES["tools"], "tool_choice": RESPONSES["tool_choice"], "text": RESPONSES["text"]}
    asked = {"model": "demo/chat", "input": "hello", "instructions": "Be brief.", "max_output_tokens": 9, **named}
    made = build_response(read_request("/v1/responses", asked, model, ServeSettings().rule_for(None)), bought("a text"))
    assert {name: made[name] for name in named} == named
    assert (made["instructions"], made["max_output_tokens"]) == ("Be brief.", 9)


def test_addresses_in_tool_schemas_are_not_fetched() -> None:
    schema = {"type": "object", "examples": [{"url": "https://example.org", "file_id": "f"}]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    model = Model("demo/chat", "demo", ModelDetails(2, True, None, "/v1/chat/completions"))
    asked = {"model": "demo/chat", "messages": CHAT["messages"], "tools": tools}
    assert read_request("/v1/chat/completions", asked, model, ServeSettings().rule_for(None)).input["tools"] == tools


def test_background_of_an_image_is_no_background_of_a_request() -> None:
    schema = {"type": "object", "properties": {"background": {"type": "string"}}}
    model = Model("demo/image", "demo", ModelDetails(4, True, schema, "/v1/images/generations"))
    asked = {"model": "demo/image", "prompt": "a seal", "background": "transparent"}
    made = read_request("/v1/images/generations", asked, model, ServeSettings().rule_for(None))
    assert made.input["background"] == "transparent"


ROUTE: Final[dict[Route, dict[str, Any]]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "a"}],
        "tools": CHAT["tools"],
        "response_format": {"type": "text"},
        "tool_choice": "auto",
    },
    "/v1/responses": {"input": RESPONSES["input"], "tools": RESPONSES["tools"], "text": {}, "include": []},
    "/v1/embeddings": {"input": "a", "encoding_format": "float"},
    "/v1/images/generations": {"prompt": "a", "size": "auto", "response_format": "url", "quality": "auto"},
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "text", "user", "message", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "function", "name", "arguments", "image_url", "index"])
            | st.sampled_from(["message", "tool_calls", "finish_reason", "embedding", "b64_json", "refusal", "status"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_request_of_any_shape_is_read_or_refused(data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(sorted(ROUTE)))
    serves = data.draw(st.sampled_from(["/v1/chat/completions", "/v1/responses", route]))
    changed = {name: data.draw(ANYTHING) for name in data.draw(st.lists(st.sampled_from(sorted(ROUTE[route])))) if name}
    model = Model("m", "demo", ModelDetails(2, True, None, serves))
    refused = 400
    try:
        read_request(route, {"model": "m", **ROUTE[route], **changed}, model, ServeSettings().rule_for(None))
    except Problem as problem:
        refused = problem.status
    assert refused in {400, 404}


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(sorted(ROUTE)),
    st.sampled_from(["choices", "output", "data", "usage", "object"]),
    ANYTHING,
    ANYTHING,
)
def test_odd_output_is_an_answer_or_reported(route: Route, name: str, inner: Any, other: Any) -> None:
    """A provider may return any output, and the output is paid for."""
    outputs = (
        *({name: inner}, {name: [inner, other]}, inner, {"object": "response", "output": [inner]}),
        {"choices": [{"message": inner, "finish_reason": other}]},
        {"choices": [{"message": {"content": inner, "tool_calls": [other]}}]},
        {"choices": [{"message": {"tool_calls": [{"function": inner, "id": other}]}}], "usage": other},
        {"output": [{"type": "message", "content": inner}, {"type": "function_call", "arguments": other}]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": inner}]}], "status": other},
        {"output": [{"type": "reasoning", "summary": inner}, {"type": other}], "usage": {"input_tokens": inner}},
        {"data": [{"embedding": inner}, {"b64_json": other}]},
    )
    for output in outputs:
        asked, got = wanted(route), bought(output)
        told = (502, "result_not_understood", got.job_id)
        try:
            json.dumps(build_answer(asked, got))
            if route in {"/v1/chat/completions", "/v1/responses"}:
                assert all(build_events(asked, got.job_id, 1).answer_events(got))
        except Problem as problem:
            told = (problem.status, str(problem.code), str(problem.job_id))
        assert told == (502, "result_not_understood", got.job_id)


@pytest.mark.parametrize(
    ("suffix", "members", "place"),
    [("", {}, "see the result with: "), ("/7", {"tab_request": "7"}, "see request 7 in the tab's transcript")],
    ids=["job", "request in a tab"],
)
def test_unreadable_result_names_its_job_and_request(suffix: str, members: dict[str, str], place: str) -> None:
    job_id = "0x" + "ab" * 32
    got = attrs.evolve(bought({"data": []}), job_id=job_id + suffix)
    with pytest.raises(Problem) as unreadable:
        build_answer(wanted("/v1/images/generations"), got)
    problem = unreadable.value
    assert place in problem.message
    assert problem.message.endswith(f"svc result {job_id}")
    assert problem.body()["error"]["svc"] == {"job_id": job_id, **members}
    assert got.to_json().items() >= problem.body()["error"]["svc"].items()
    assert got.headers().items() >= problem.headers().items() - {("x-should-retry", "false")}


def test_several_answers_are_paid_for_each() -> None:
    model = Model("demo/chat", "demo", ModelDetails(2, True, None, "/v1/chat/completions"))
    body = {"model": "demo/chat", "messages": [{"role": "user", "content": "a"}], "n": 3, "max_tokens": 10}
    assert read_request("/v1/chat/completions", body, model, ServeSettings().rule_for(None)).units_out == 30


@pytest.mark.parametrize(
    ("route", "serves", "asked", "param"),
    [
        ("/v1/responses", "/v1/chat/completions", {"input": [{"role": {}, "content": "a"}]}, "input[0].role"),
        ("/v1/responses", "/v1/chat/completions", {"input": "a", "include": 1}, "include"),
        ("/v1/responses", "/v1/chat/completions", {"input": "a", "tools": 1}, "tools"),
        ("/v1/embeddings", "/v1/embeddings", {"input": "a", "encoding_format": []}, "encoding_format"),
        ("/v1/images/generations", "/v1/images/generations", {"prompt": "a", "response_format": {}}, "response_format"),
        (
            "/v1/chat/completions",
            "/v1/responses",
            {"messages": [{"role": "assistant", "content": "a", "tool_calls": 1}]},
            "messages[0].tool_calls",
        ),
        (
            "/v1/chat/completions",
            "/v1/responses",
            {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": []}},
            "response_format",
        ),
    ],
)
def test_value_of_another_kind_is_named(route: Route, serves: str, asked: dict[str, Any], param: str) -> None:
    model = Model("demo/chat", "demo", ModelDetails(2, True, None, serves))
    with pytest.raises(Problem) as refused:
        read_request(route, {"model": "demo/chat", **asked}, model, ServeSettings().rule_for(None))
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)


@pytest.mark.parametrize("cap", [-1, True])
def test_cap_that_is_no_count_is_named_as_it_was_sent(cap: object) -> None:
    model = Model("demo/chat", "demo", ModelDetails(2, True, None, "/v1/chat/completions"))
    body = {"model": "demo/chat", "messages": [{"role": "user", "content": "a"}], "n": 3, "max_tokens": cap}
    with pytest.raises(Problem, match="max_tokens must be a whole number") as refused:
        read_request("/v1/chat/completions", body, model, ServeSettings().rule_for(None))
    assert refused.value.param == "max_tokens"
