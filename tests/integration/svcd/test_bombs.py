"""Responses to a provider that decompress to any size, or never end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from common.checks import CheckResult
from svc.wire.connections import open_client
from svc.wire.gateways import Gateways
from svcd.backends.build import open_backend
from svcd.backends.load_request import fetch_body
from svcd.base.end_reasons import WorkFailed
from svcd.base.errors import Unavailable
from svcd.config import MetricsTable
from svcd.coordinator.client import open_transport, read_deployment
from svcd.operator.status import check_status
from svcd.payload.gateway import PayloadGateways
from svcd.payload.spool import Spool
from tests.support.fakes.backend_settings import read_backend
from tests.support.fakes.provider_work import work_on
from tests.support.faults.bomb_server import BombServer, bomb_server, flat_memory

pytestmark = pytest.mark.trio

NAMED = r"content encoding gzip, gzip"


@pytest.fixture
def server() -> Iterator[BombServer]:
    with bomb_server() as server:
        yield server


async def test_coordinators_encoded_answer_is_none_and_is_left_unread(server: BombServer) -> None:
    async with open_client(base_url=server.url) as http:
        with flat_memory(), pytest.raises(Unavailable, match=NAMED):
            await read_deployment(open_transport(http))
    assert server.asked_for_no_encoding()


async def _fetched(server: BombServer, directory: Path) -> int:
    spool = Spool(directory, 1 << 20)

    async def length() -> int:
        return spool.length

    async with open_client() as http:
        return await PayloadGateways(Gateways(http, [server.url])).fetch(
            "bafyx", spool, trio.current_time() + 20, length
        )


@pytest.mark.parametrize("redirects", [0, 2])
async def test_gateways_encoded_content_fails_the_job_unread(
    server: BombServer, tmp_path: Path, redirects: int
) -> None:
    server.redirects = redirects
    with flat_memory(), pytest.raises(WorkFailed, match=NAMED) as failed:
        await _fetched(server, tmp_path)
    assert failed.value.reason == "task_unresolved"
    assert len(server.heads) == redirects + 1  # a retry would get the same answer
    assert server.asked_for_no_encoding()


async def test_gateway_redirects_are_followed_with_bodies_unread(server: BombServer, tmp_path: Path) -> None:
    server.redirects, server.plain = 3, b"there"
    with flat_memory():
        assert await _fetched(server, tmp_path) == 5


async def test_look_at_a_gateway_reads_nothing_of_it(server: BombServer) -> None:
    async with open_client() as http:
        with flat_memory():
            assert await PayloadGateways(Gateways(http, [server.url])).find_fault(server.url) is None


BACKENDS: dict[str, dict[str, object]] = {
    "openai": {"kind": "openai", "base_url": "{url}", "api": "chat"},
    "openai without a stream": {"kind": "openai", "base_url": "{url}", "api": "chat", "stream": False},
    "http": {"kind": "http", "submit_url": "{url}/jobs", "poll_url": "{url}/jobs/{{id}}"},
}


@pytest.mark.parametrize("table", BACKENDS.values(), ids=BACKENDS.keys())
async def test_encoded_backend_response_is_the_providers_fault(server: BombServer, table: dict[str, object]) -> None:
    entries = {key: value.format(url=server.url) if isinstance(value, str) else value for key, value in table.items()}
    async with open_backend(read_backend({**entries, "attempts": 1})) as backend:
        with flat_memory():
            assert await backend.is_up()
            with pytest.raises(WorkFailed, match=NAMED) as failed:
                await backend.run(work_on())
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_error", True)
    assert server.asked_for_no_encoding()


async def test_results_file_that_comes_encoded_is_left_unread() -> None:
    with bomb_server() as files, bomb_server() as jobs:
        jobs.plain = b'{"id": "1", "status": "done", "output": "%s/file"}' % files.url.encode()
        table = {"kind": "http", "submit_url": f"{jobs.url}/jobs", "poll_url": f"{jobs.url}/jobs/{{id}}"}
        entries = {**table, "download": True, "result_path": "output", "attempts": 1}
        async with open_backend(read_backend(entries)) as backend:
            with flat_memory(), pytest.raises(WorkFailed, match=NAMED):
                await backend.run(work_on({"prompt": "x"}, modality="image"))
        assert files.asked_for_no_encoding()


async def test_probes_encoded_answer_is_no_reading(server: BombServer) -> None:
    async with open_client() as http:
        with flat_memory():
            assert await fetch_body(http, server.url, 5) is None
    assert server.asked_for_no_encoding()


async def test_encoded_status_of_a_foreign_server_is_left_unread(server: BombServer, tmp_path: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    with flat_memory():
        found = await trio.to_thread.run_sync(check_status, tmp_path, MetricsTable(port=port))
    assert (found[0].what, found[0].result) == ("daemon", CheckResult.WRONG)
