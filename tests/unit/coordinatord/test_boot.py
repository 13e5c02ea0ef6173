"""The boot: failing nodes, ports in use, limits of the machine, and what is imported."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.daemon.operators_port import bind_operators_port
from common.daemon.process import Fatal
from common.domains import Domains
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes
from coordinatord.http.server.serving import listening_socket
from coordinatord.run.chain_checks import check_chain, check_nodes
from coordinatord.run.config import read_config
from coordinatord.run.descriptors import max_caller_connections, memory_limit_bytes, raise_descriptor_limit
from coordinatord.run.limits import Limits
from tests.unit.coordinatord.environment import ENVIRONMENT

pytestmark = pytest.mark.anyio


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
