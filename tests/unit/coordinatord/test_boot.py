"""Node failures at the start: which ones are retried, and which end the boot."""

import json
import subprocess
import sys

import pytest

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.domains import Domains
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes
from coordinatord.run.chain_checks import check_chain, check_nodes
from tests.unit.coordinatord.environment import ENVIRONMENT

pytestmark = pytest.mark.anyio

BOOK = AddressBook.parse(
    b'{"chainId":1,"deployBlock":0,"jobRegistry":"0x'
    + b"1" * 40
    + b'","providerRegistry":"0x'
    + b"2" * 40
    + b'","askRegistry":"0x'
    + b"3" * 40
    + b'","paytoken":"0x'
    + b"4" * 40
    + b'","paymentTokenDecimals":6,"tokenDomain":{"name":"T","version":"1"}}'
)


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
        Fatal, match=r"^node b: chainId: the address book is for chain 1, but the RPC endpoint serves chain 7"
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
