"""Identify model servers by the lists that they serve."""

import pytest

from svcd.backends.build import open_backend
from svcd.backends.servers import ServedModels
from svcd.operator.discovery import ModelServer, find_servers
from tests.support.fakes.backend_settings import read_backend
from tests.support.fakes.model_server import Asked, Reply, running_model_server

pytestmark = pytest.mark.trio

SOFTWARE = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "library": "Ollama", "lmdeploy": "LMDeploy"}


def serving(owner: str, *names: str, metrics: bytes | None = None):  # type: ignore[no-untyped-def]
    def answer(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return Reply.of({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]})
        return Reply(200, (metrics,)) if metrics is not None else Reply.of({}, 404)

    return answer


@pytest.mark.parametrize("owner", [*SOFTWARE, "somebody"])
async def test_server_is_found_with_its_models(owner: str) -> None:
    async with running_model_server(serving(owner, "a", "b")) as server:
        (found,) = await find_servers(["http://127.0.0.1:1", f"{server.url}/v1"])
    assert (found.url, found.served.names, found.served.software) == (server.url, ("a", "b"), SOFTWARE.get(owner))
    assert found.metrics_url is None


async def test_servers_figures_are_used_where_they_tell_a_load() -> None:
    async with running_model_server(serving("vllm", "a", metrics=b"vllm:num_requests_running 1\n")) as server:
        (found,) = await find_servers([server.url])
    assert found.metrics_url == f"{server.url}/metrics"


CACHE = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="%b"} 1.0\n'


@pytest.mark.parametrize(
    ("owner", "route", "body", "parallel"),
    [
        ("llamacpp", "/props", b'{"total_slots": 4}', 4),
        ("llamacpp", "/props", b'{"total_slots": 100000}', 256),
        ("llamacpp", "/props", b'{"total_slots": "4"}', None),
        ("llamacpp", "/props", b"<html>", None),
        ("vllm", "/metrics", CACHE % b"2048", 4),  # requests of 8192 tokens
        ("vllm", "/metrics", CACHE % b"2", 1),
        ("vllm", "/metrics", CACHE % b"None", None),
        ("vllm", "/metrics", b"up 1\n", None),
        ("library", "/props", b'{"total_slots": 4}', None),
    ],
)
async def test_server_says_how_many_requests_it_runs(owner: str, route: str, body: bytes, parallel: int | None) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return Reply.of({"data": [{"id": "a", "owned_by": owner, "max_model_len": 8192}]})
        return Reply(200, (body,)) if asked.path == route else Reply.of({}, 404)

    async with running_model_server(answer) as server:
        (found,) = await find_servers([server.url])
    assert found.parallel_requests == parallel


@pytest.mark.parametrize(
    ("software", "parallel", "proposed"), [("vLLM", None, 8), ("vLLM", 3, 3), ("llama.cpp", None, 1), (None, None, 1)]
)
async def test_slots_are_proposed_by_what_is_known(software: str | None, parallel: int | None, proposed: int) -> None:
    assert ModelServer("http://a", ServedModels(("a",), software), None, parallel).proposed_slots == proposed


@pytest.mark.parametrize("body", [{"data": []}, {"data": [{"name": "a"}]}, {"models": []}, [1], "x"])
async def test_what_lists_no_models_is_no_model_server(body: object) -> None:
    async with running_model_server(lambda _: Reply.of(body)) as server:
        assert await find_servers([server.url]) == []


@pytest.mark.parametrize(
    ("owner", "listed", "name", "known"),
    [
        ("vllm", ("a", "b"), "b", True),
        ("vllm", ("a", "b"), "c", False),
        ("lmdeploy", ("a",), "c", False),
        ("library", ("a:latest",), "a", True),
        ("library", ("a:8b",), "a", False),
        ("llamacpp", ("/models/a.gguf",), "whatever", True),  # a single model answers to any name
        ("sglang", ("a", "a:lora"), "c", False),
        ("somebody", ("a",), "c", False),
    ],
)
async def test_name_is_known_where_the_server_would_answer_to_it(
    owner: str, listed: tuple[str, ...], name: str, known: bool
) -> None:
    async with running_model_server(serving(owner, *listed)) as server:
        table = {"kind": "openai", "api": "chat", "base_url": server.url, "models": {"m": name}}
        for check_name in (True, False):
            async with open_backend(read_backend(table | {"check_name": check_name})) as backend:
                assert (await backend.explain_unknown_model("m") is None) == (known or not check_name)


async def test_server_that_lists_nothing_is_asked_by_any_name() -> None:
    async with running_model_server(lambda _: Reply.of({}, 404)) as server:
        table = {"kind": "openai", "api": "chat", "base_url": server.url}
        async with open_backend(read_backend(table)) as backend:
            assert await backend.explain_unknown_model("m") is None
