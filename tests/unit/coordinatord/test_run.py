"""How a coordinator runs: its boot, readiness, metrics of the last hour, and the janitor."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from common.daemon.operators_port import bind_operators_port
from common.daemon.process import Fatal
from common.domains import Domains
from coordinatord.api.system.readiness import ReadinessReport, judge_readiness
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.indexer.position_sql import IndexPosition
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes
from coordinatord.http.server.serving import listening_socket
from coordinatord.run import janitor
from coordinatord.run.chain_checks import check_chain, check_nodes
from coordinatord.run.config import read_config
from coordinatord.run.descriptors import max_caller_connections, memory_limit_bytes, raise_descriptor_limit
from coordinatord.run.limits import Limits
from coordinatord.run.operators_port import MetricsHistory
from tests.unit.coordinatord.environment import ENVIRONMENT

BOOK = read_config(ENVIRONMENT).addresses


@pytest.mark.parametrize(("code", "raised"), [(-32005, Retryable), (-32603, Retryable), (-32601, Fatal)])
async def test_boot_waits_for_the_chain_id(code: int, raised: type[Exception]) -> None:
    async def refuse(_request: bytes) -> tuple[int, bytes]:
        return 200, b'{"jsonrpc":"2.0","id":0,"error":{"code":%d,"message":"no"}}' % code

    with pytest.raises(raised):
        await check_chain(Rpc(refuse), BOOK, Domains.of(BOOK))


async def test_boot_tolerates_an_absent_node_but_not_a_foreign_one() -> None:
    async def other_chain(request: bytes) -> tuple[int, bytes]:
        return 200, b'{"jsonrpc":"2.0","id":%d,"result":"0x7"}' % json.loads(request)["id"]

    async def away(_request: bytes) -> tuple[int, bytes]:
        raise NoResponse("refused")

    with pytest.raises(Retryable):
        await check_nodes(Nodes([Node("a", away), Node("b", away)]), BOOK, Domains.of(BOOK))
    with pytest.raises(
        Fatal, match=r"^node b: chainId: the address book is for chain 31337, but the RPC endpoint serves chain 7"
    ):
        await check_nodes(Nodes([Node("a", away), Node("b", other_chain)]), BOOK, Domains.of(BOOK))


def test_daemon_starts_without_decoding_libraries() -> None:
    """These libraries take half of the start-up time, and tens of megabytes for as long as the daemon runs."""
    imported = "import sys, coordinatord.run.commands, coordinatord.run.app, coordinatord.run.checks.examine"
    program = imported + "; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "asyncpg" in loaded
    assert {"eth_account", "eth_abi", "eth_utils", "py_ecc", "pydantic", "web3", "ckzg", "pycparser"} & set(
        loaded
    ) == set()


def test_settings_command_imports_only_settings() -> None:
    code = (
        "import sys; from coordinatord.run.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'asyncpg', 'hypercorn', 'httptools', 'eth_account', 'coordinatord.run.dependencies'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "keys"], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "relayer" in ran.stdout


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_idle_command_line_imports_no_server_or_client(option: str) -> None:
    code = (
        "import sys; from coordinatord.run.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'asyncpg', 'hypercorn', 'httptools', 'structlog', 'rich', 'coordinatord.run.app'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout


HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as other:
        yield other.getsockname()[1]


def test_taken_port_names_its_variable(taken: int) -> None:
    with pytest.raises(Fatal, match=f"^PORT, BIND_HOST: {HOST}:{taken} cannot be bound: "):
        listening_socket(taken, HOST)


def test_foreign_bind_address_names_its_variable() -> None:
    with pytest.raises(Fatal, match=r"^PORT, BIND_HOST: 192\.0\.2\.1:8402 cannot be bound: "):
        listening_socket(8402, "192.0.2.1")


def test_taken_metrics_port_names_its_variable(taken: int) -> None:
    with pytest.raises(Fatal, match=f"METRICS_PORT: {HOST}:{taken}: "):
        bind_operators_port(HOST, taken, "METRICS_HOST, METRICS_PORT")


GIB = 1 << 30


def test_soft_descriptor_limit_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_and_memory_limit_connections() -> None:
    config = read_config(ENVIRONMENT)
    assert 512 < max_caller_connections(1024, 64 * GIB, config) < 1024
    assert max_caller_connections(1 << 20, 2 * GIB, config) == 8192
    assert max_caller_connections(64, 0, config) == 16


def test_descriptors_are_reserved_before_callers() -> None:
    plain = max_caller_connections(4096, 64 * GIB, read_config(ENVIRONMENT))
    for setting in (
        {"WEBHOOKS_KEY": "5e" * 32},
        {"DATABASE_REPLICA_URLS": "postgresql://replica.invalid/none"},
        {"DATABASE_POOL_MAX": "64"},
    ):
        assert max_caller_connections(4096, 64 * GIB, read_config(ENVIRONMENT | setting)) < plain


def test_default_limits_are_those_of_the_default_connections() -> None:
    assert Limits().with_connections(Limits().connections) == Limits()


@pytest.mark.parametrize(("own", "parent", "expected"), [("max", "4096", 4096), ("1024", "4096", 1024)])
def test_memory_is_limited_by_every_enclosing_cgroup(tmp_path: Path, own: str, parent: str, expected: int) -> None:
    group = tmp_path / "system.slice" / "coordinatord.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{own}\n")
    (group.parent / "memory.max").write_text(f"{parent}\n")
    (tmp_path / "own").write_text("0::/system.slice/coordinatord.service\n")
    assert memory_limit_bytes(tmp_path, tmp_path / "own") == expected


def test_memory_without_cgroups_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path, tmp_path / "none") == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_one_caller_has_at_least_the_default_share() -> None:
    small, large = Limits().with_connections(1024), Limits().with_connections(65_536)
    assert (small.connections_per_caller, small.event_listeners_per_caller, small.event_listeners) == (512, 64, 512)
    assert (large.connections_per_caller, large.event_listeners_per_caller) == (4096, 512)


def at(block: int, *, rebuilding: bool = False) -> IndexPosition:
    return IndexPosition(block, b"\1" * 32, 1_700_000_000, rebuilding)


@pytest.mark.parametrize(
    ("position", "head", "report"),
    [
        (at(100), 107, ReadinessReport(True, "ready", 100, 107, 7)),
        (at(100), 108, ReadinessReport(False, "trailing", 100, 108, 8)),
        (at(100), 98, ReadinessReport(True, "ready", 100, 98, -2)),
        (at(100), 92, ReadinessReport(False, "trailing", 100, 92, -8)),
        (None, 5, ReadinessReport(False, "cold_start", None, 5, None)),
        (at(100, rebuilding=True), 100, ReadinessReport(False, "reorg", 100, 100, 0)),
        (at(100), None, ReadinessReport(False, "chain_unreachable", None, None, None)),
        (None, None, ReadinessReport(False, "chain_unreachable", None, None, None)),
    ],
)
def test_report_names_the_reason(position: IndexPosition | None, head: int | None, report: ReadinessReport) -> None:
    assert judge_readiness(position, head, 7) == report


def test_emptied_index_is_at_no_negative_block() -> None:
    assert judge_readiness(at(-1, rebuilding=True), 5, 7).cursor == 0


def test_history_has_the_last_hour_and_sums_over_labels() -> None:
    now = [1_800_000_000.0]
    history = MetricsHistory(lambda: now[0])
    for priority, depth in (("exit", 2), ("post", 5)):
        metrics.relay_queue_depth.labels(priority).set(depth)
    metrics.index_lag.set(3)
    for _ in range(1000):
        history.record_sample()
        now[0] += 15
    samples = json.loads(history.as_json())["samples"]
    assert samples[-1]["at"] - samples[0]["at"] == 3600 - 15
    assert (samples[-1]["queue"], samples[-1]["lag"]) == (7, 3)


def test_absent_series_is_unknown() -> None:
    metrics.relay_gas_price.clear()
    history = MetricsHistory()
    history.record_sample()
    assert json.loads(history.as_json())["samples"][0]["gas_price"] is None


async def test_content_is_removed_several_at_a_time_and_no_more() -> None:
    under_way, most, full = 0, 0, anyio.Event()

    async def remove() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == janitor._MAX_CONCURRENT_REMOVALS:
            full.set()
        await full.wait()
        await anyio.lowlevel.checkpoint()
        under_way -= 1

    with anyio.fail_after(60):
        await janitor._remove_all({str(n): remove for n in range(4 * janitor._MAX_CONCURRENT_REMOVALS)})
    assert most == janitor._MAX_CONCURRENT_REMOVALS > 1


async def test_janitor_skips_content_that_cannot_be_removed() -> None:
    removed: list[int] = []

    async def remove(number: int) -> None:
        if number == 1:
            raise Retryable("store_unavailable", "the object store did not answer")
        removed.append(number)

    await janitor._remove_all({str(n): partial(remove, n) for n in range(6)})
    assert sorted(removed) == [0, 2, 3, 4, 5]
