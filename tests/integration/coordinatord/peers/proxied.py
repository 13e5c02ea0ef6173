"""The documented nginx configuration passes uploads, streams, waits and refusals of a coordinator through unchanged."""

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import attrs
import httpx
import pytest

from devnet.ports import LOOPBACK
from tests.integration.coordinatord.peers.conftest import Served
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.server.test_reverse_proxy import running

MIB = 1 << 20
BEHIND = {"TRUSTED_PROXIES": "127.0.0.1"}


def _callers_say_who_they_are(text: str) -> str:
    return text.replace("server_name", "set_real_ip_from 127.0.0.1; real_ip_header x-real; server_name")


@pytest.fixture
def served_settings() -> dict[str, object]:
    return BEHIND


@pytest.fixture
def proxy(served: Served, tmp_path: Path) -> Iterator[str]:
    """Start the proxy and return its base URL."""
    port = urlsplit(served.coordinator.base_url).port
    assert port is not None
    for of_proxy in running(port, tmp_path, _callers_say_who_they_are):
        yield f"http://{LOOPBACK}:{of_proxy}"


@pytest.fixture
async def through(proxy: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=proxy, timeout=60, trust_env=False) as http:
        yield http


@pytest.fixture
def buyer(owner: Party, through: httpx.AsyncClient) -> Party:
    """The owner, with requests sent through the proxy."""
    return attrs.evolve(owner, http=through)


async def test_large_file_is_uploaded_and_read_in_ranges(
    buyer: Party, through: httpx.AsyncClient, held: Callable[[str], None]
) -> None:
    await buyer.sign_in()
    content = b"\x01" + random.Random(22).randbytes(40 * MIB)  # starts like a container
    uploaded = await buyer.upload("input", content)
    assert uploaded.status_code == 200, uploaded.text
    path = f"/v1/files/{uploaded.json()['id']}/content"
    assert (await through.get(path, headers=buyer.authorization)).content == content
    part = await through.get(path, headers={**buyer.authorization, "range": "bytes=1048570-1048585"})
    assert (part.status_code, part.content) == (206, content[1048570:1048586])
    assert part.headers["content-range"] == f"bytes 1048570-1048585/{len(content)}"
    held("an upload of 40 MiB, whole and in part")


async def test_oversized_body_is_refused_by_coordinator_or_proxy(
    through: httpx.AsyncClient, held: Callable[[str], None]
) -> None:
    ours = await through.post("/v1/jobs", content=bytes(20 * MIB + 1), headers={"content-type": "application/json"})
    assert (ours.status_code, ours.headers["x-svc-retryable"]) == (413, "false")
    assert ours.json()["error"]["type"] == "invalid_request_error"
    theirs = await through.post("/v1/jobs", content=bytes(22 * MIB), headers={"content-type": "application/json"})
    assert (theirs.status_code, "nginx" in theirs.text) == (413, True)
    held("413 of both")


async def test_events_come_as_they_happen(
    served: Served, owner: Party, through: httpx.AsyncClient, held: Callable[[str], None]
) -> None:
    """The proxy does not buffer a stream: one event of some hundred bytes arrives."""
    with anyio.fail_after(60):
        async with through.stream("GET", "/evm/events") as stream:
            assert (stream.status_code, stream.headers["content-type"]) == (200, "text/event-stream")
            lines = stream.aiter_lines()
            await anext(lines)  # the stream is open
            job = (await owner.post())["job_id"]
            while job not in await anext(lines):
                pass
    held("events")


async def test_held_poll_is_answered_when_there_is_a_job(
    owner: Party, seller: Party, through: httpx.AsyncClient, held: Callable[[str], None]
) -> None:
    query = {"free": "1", "state": "Open", "model": "1", "wait": "30"}
    answers: list[httpx.Response] = []

    async def poll() -> None:
        answers.append(await through.get("/evm/jobs", params=query, headers=seller.authorization))

    with anyio.fail_after(25):  # before the wait is over
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll)
            await anyio.wait_all_tasks_blocked()
            job = (await owner.post())["job_id"]
    [answer] = answers
    assert [one["job_id"] for one in answer.json()["jobs"]] == [job]
    held("a held poll")


@asynccontextmanager
async def _calling(proxy: str, address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=proxy, headers={"x-real": address}, trust_env=False) as http:
        yield http


@pytest.mark.parametrize("served_settings", [{**BEHIND, "REQUESTS_PER_SECOND": 1, "requests_burst": 50}])
async def test_callers_behind_the_proxy_have_separate_limits(proxy: str, held: Callable[[str], None]) -> None:
    async with _calling(proxy, "198.51.100.7") as busy, _calling(proxy, "198.51.100.8") as other:
        for _ in range(200):
            refused = await busy.get("/healthz")
            if refused.status_code != 200:
                break
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-svc-retryable"] == "true"
        assert refused.json()["error"]["type"] == "busy"
        # An address that the caller puts before the proxy's entry has no effect.
        claimed = await busy.get("/healthz", headers={"x-forwarded-for": "203.0.113.9"})
        assert claimed.status_code == 429
        assert (await other.get("/healthz")).status_code == 200
    held("callers' addresses, and a 429 with its Retry-After")
