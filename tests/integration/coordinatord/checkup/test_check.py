"""`coordinatord check` on a healthy market, and on one with each fault in turn."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress

import anyio
import httpx
import pytest
from anyio.abc import SocketListener, SocketStream

from common.checks import CheckResult, CheckRow, wrong_names
from common.daemon.secrets import Secret
from coordinatord.http.server.serving import listening_socket
from coordinatord.run.checks.examine import run_checks
from coordinatord.storage.database import migration
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.migration import Migration, migrate
from coordinatord.storage.pins.store import PinnedObject, PinningStore, open_pin_store
from devnet.accounts import DevWallets
from devnet.anvil import Anvil, running_anvil
from devnet.app import deploy_market
from devnet.contracts import connect_to_chain, contract_at
from devnet.market import DevnetMarket
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.scene.stage import environment
from tests.support.fakes.kubo import KuboNode, running_kubo
from tests.support.faults.descriptors import limited
from tests.support.faults.rpc_proxy import (
    ANY,
    ErrorAnswer,
    Fault,
    HttpStatus,
    RefuseWideRanges,
    Rewrite,
    RpcProxy,
    older_head,
    rpc_proxy,
)

WELL = {
    "settings": CheckResult.RIGHT,
    "variables": CheckResult.RIGHT,
    "database": CheckResult.RIGHT,
    "durability": None,
    "migrations": CheckResult.RIGHT,
    "relayer process": None,
    "node": CheckResult.RIGHT,
    "clock and chain": CheckResult.RIGHT,
    "contracts": CheckResult.RIGHT,
    "token decimals": CheckResult.RIGHT,
    "history": CheckResult.RIGHT,
    "deployBlock": CheckResult.RIGHT,
    "state": CheckResult.RIGHT,
    "log range": CheckResult.RIGHT,
    "gas": CheckResult.RIGHT,
    "relayer role": CheckResult.RIGHT,
    "relayer funds": CheckResult.RIGHT,
    "pin store": CheckResult.RIGHT,
    "gateway": CheckResult.RIGHT,
    "clock and pin store": CheckResult.RIGHT,
    "escrow": None,
    "bind host": None,
    "port": CheckResult.RIGHT,
    "open files": CheckResult.RIGHT,
}


@pytest.fixture(scope="module")
def shared_anvil(services: Services) -> Iterator[Anvil]:
    """A separate chain for these tests. The shared chain no longer has the states of its deployment."""
    yield from services.run(running_anvil(pick_free(), services.folder("anvil-checked"), services.folder("logs")))


@pytest.fixture(scope="module")
def market(services: Services, shared_anvil: Anvil, wallets: DevWallets) -> DevnetMarket:
    return services.portal.call(deploy_market, shared_anvil, wallets)


@pytest.fixture
async def well(world: World, database_url: str) -> dict[str, str]:
    """Return the environment of a healthy coordinator."""
    async with open_database(database_url, max_size=2) as database, database.connection() as connection:
        await migrate(connection)
    return environment(world, database_url, GATEWAY_URL=world.pins.gateway, PORT=pick_free())


@pytest.mark.parametrize(("host", "remarked"), [("0.0.0.0", True), ("127.0.0.1", False)])  # noqa: S104 - the default
async def test_exposed_port_is_remarked_on(well: dict[str, str], host: str, remarked: bool) -> None:
    row = (await looked(well, BIND_HOST=host)).get("bind host")
    assert (row is not None) == remarked
    if row is not None:
        assert (row.result, "BIND_HOST=127.0.0.1" in row.remedy) == (None, True)


@pytest.fixture
async def proxy(world: World) -> AsyncIterator[RpcProxy]:
    async with rpc_proxy(world.anvil.rpc_url) as proxy:
        yield proxy


async def looked(environ: dict[str, str], **changed: object) -> dict[str, CheckRow]:
    rows = await run_checks({**environ, **{name: str(value) for name, value in changed.items()}})
    by_name = {row.what: row for row in rows}
    assert len(by_name) == len(rows)
    return by_name


def wrongs(rows: dict[str, CheckRow]) -> set[str]:
    return set(wrong_names(rows.values()))


async def test_healthy_market_passes_every_check(well: dict[str, str], world: World) -> None:
    rows = await looked(well)
    assert {row.what: row.result for row in rows.values()} == WELL, [row.text for row in rows.values()]
    cid = rows["pin store"].detail.rpartition(" ")[2]
    async with httpx.AsyncClient(trust_env=False) as gateway:
        assert (await gateway.get(f"{world.pins.gateway}/ipfs/{cid}")).status_code == 404


async def test_check_command_prints_table_and_json_with_status(well: dict[str, str]) -> None:
    async def run(*arguments: str, **changed: str) -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-m", "coordinatord", "check", *arguments]
        return await anyio.run_process(command, env={**well, **changed}, check=False)

    table = await run()
    assert (table.returncode, table.stderr) == (0, b"")
    assert table.stdout.splitlines()[-1] == b"nothing is wrong"
    assert b"right    relayer role" in table.stdout
    found = await run("--json", RELAY_MAX_DEPHT="64")
    assert found.returncode == 1
    [row] = [row for row in json.loads(found.stdout) if row["result"] == "WRONG"]
    assert row["what"] == "variables"
    assert "RELAY_MAX_DEPHT (did you mean RELAY_MAX_DEPTH?)" in row["detail"]


async def test_few_descriptors_are_reported_with_their_limit(well: dict[str, str]) -> None:
    command = limited((sys.executable, "-m", "coordinatord", "check", "--json"), 1024)
    found = await anyio.run_process(command, env={**well, "PATH": os.environ["PATH"]}, check=False)
    (row,) = [row for row in json.loads(found.stdout) if row["what"] == "open files"]
    assert (found.returncode, row["result"]) == (0, None)
    assert "1024 open files and" in row["detail"]
    assert "raise LimitNOFILE and MemoryMax of the unit" in row["remedy"]


async def test_settings_that_cannot_be_read_are_named_all_at_once(well: dict[str, str]) -> None:
    rows = await run_checks({**well, "PORT": "none", "BLOCK_TIME_MS": "0", "DATABASE_URL": ""})
    faults = [row.detail for row in rows if row.what == "settings"]
    assert [fault.split()[0] for fault in faults] == ["BLOCK_TIME_MS", "DATABASE_URL", "PORT"]


@pytest.mark.parametrize(
    ("changed", "what", "says"),
    [
        ({"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}, "database", "DATABASE_URL"),
        ({"RPC_URL": "http://127.0.0.1:1"}, "node", "RPC_URL"),
        ({"PIN_STORE_ENDPOINT": "http://127.0.0.1:1"}, "pin store", "PIN_STORE"),
        ({"PIN_STORE_SECRET": "wrong"}, "pin store", "refused"),
        ({"GATEWAY_URL": "http://127.0.0.1:1"}, "gateway", "does not serve the probe"),
        ({"ESCROW_MODE": "static", "OPERATOR_KEY": "0x" + "02" * 32 + ",0x" + "02" * 32}, "escrow keys", "twice"),
    ],
)
async def test_what_is_away_or_misconfigured_is_the_only_wrong_row(
    well: dict[str, str], changed: dict[str, str], what: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.run.checks.examine._GATEWAY_TIMEOUT_S", 1.0)
    rows = await looked(well, **changed)
    assert wrongs(rows) == {what}
    assert says in rows[what].text
    assert rows[what].remedy


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, "can share the port"),
        ({"job_registry": "0x" + "01" * 20}, "another market"),
        ({"chain_id": 1}, "another market"),
    ],
)
async def test_port_is_shared_with_processes_of_the_same_market_alone(
    well: dict[str, str], world: World, other: dict[str, object], says: str
) -> None:
    book = world.market.address_book
    ours: dict[str, object] = {"chain_id": book["chainId"], "job_registry": str(book["jobRegistry"]).lower()}
    there = ours | other
    body = {"chain_id": there["chain_id"], "contracts": {"job_registry": there["job_registry"]}}
    async with answering(int(well["PORT"]), json.dumps(body).encode()):
        row = (await looked(well))["port"]
    assert says in row.detail
    assert row.result is (CheckResult.WRONG if other else CheckResult.RIGHT)


async def test_port_where_another_program_listens_is_wrong(well: dict[str, str]) -> None:
    for body in (b"<h1>It works!</h1>", b" " * (1 << 17)):  # the second is longer than the read limit
        async with answering(int(well["PORT"]), body):
            assert "another program answers" in (await looked(well))["port"].detail
    with socket.socket() as alone:  # no other socket shares this port
        port = pick_free()
        alone.bind(("127.0.0.1", port))
        alone.listen()
        row = (await looked(well, PORT=port))["port"]
    assert (row.result, row.remedy) == (CheckResult.WRONG, "check PORT and BIND_HOST")


@asynccontextmanager
async def answering(port: int, body: bytes) -> AsyncIterator[None]:
    """Send the same response to every request at the port, which others may share."""

    async def answer(connection: SocketStream) -> None:
        # Port probes send nothing, and some readers disconnect early.
        async with connection:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await connection.receive()
                head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
                await connection.send(head + body)

    listening = listening_socket(port, "127.0.0.1")
    listening.listen()
    listening.setblocking(False)
    async with (
        await SocketListener.from_socket(listening) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        yield
        tasks.cancel_scope.cancel()


async def test_keys_in_addresses_stand_in_no_row(well: dict[str, str]) -> None:
    rows = await looked(
        well,
        RPC_URL="http://127.0.0.1:1/v3/KEYOFTHENODE",
        DATABASE_URL="postgresql://nobody:WORDOFTHEDATABASE@127.0.0.1:1/none",
        PIN_STORE_SECRET="WORDOFTHESTORE",
        RELAYER_KEY="0x" + "ab" * 32,
    )
    told = " ".join(f"{row.text} {row.detail}" for row in rows.values())
    for secret in ("KEYOFTHENODE", "WORDOFTHEDATABASE", "WORDOFTHESTORE", "ab" * 32):
        assert secret not in told


async def test_probe_is_removed_when_its_time_is_over(
    well: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []
    put = PinningStore.put

    async def noted(self: PinningStore, key: str, content: bytes) -> PinnedObject:
        stored.append(key)
        return await put(self, key, content)

    async def hangs(_self: PinningStore, _key: str) -> bytes:
        await anyio.sleep_forever()
        return b""

    monkeypatch.setattr(PinningStore, "put", noted)
    monkeypatch.setattr(PinningStore, "get", hangs)
    monkeypatch.setattr("coordinatord.run.checks.examine._STORE_TIMEOUT_S", 1.0)
    rows = await looked(well)
    assert rows["pin store"].detail == "no answer in 1 s"
    [key] = stored
    place = world.pins
    key_and_secret = Secret(place.key), Secret(place.secret)
    async with open_pin_store(place.endpoint, place.bucket, *key_and_secret, place.region) as pins:
        assert not await pins.holds(key)


async def test_server_that_is_too_old_is_said_to_be_so(well: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.storage.database.migration.MIN_SERVER_VERSION", 99)
    row = (await looked(well))["database"]
    assert row.result is CheckResult.WRONG
    assert "must be PostgreSQL 99 or newer" in row.remedy


async def test_older_empty_newer_and_changed_databases_are_told_apart(
    well: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = migration.load_migrations()
    later = Migration(9000, "9000_later.sql", "-- least release: 0.1.0\n")
    async with open_database(well["DATABASE_URL"], max_size=2) as database:

        async def migrations_after(statement: str) -> CheckRow:
            async with database.connection() as connection:
                await connection.execute(statement)
            return (await looked(well))["migrations"]

        with monkeypatch.context() as newer_release:
            newer_release.setattr(migration, "load_migrations", lambda: files | {9000: later})
            older = await migrations_after("select 1")
        newer = await migrations_after(
            "insert into migrations (number, name, sha256, least_release) values (9000, '9000_later.sql', '', '0.1.0')"
        )
        too_new = await migrations_after("update migrations set least_release = '98.0.0' where number = 9000")
        changed = await migrations_after("update migrations set sha256 = '' where number = 1")
        empty = await migrations_after("drop table migrations")
    assert older.result is None
    assert "older" in older.detail
    assert "9000_later.sql" in older.remedy
    assert newer.result is None
    assert "9000_later.sql" in newer.detail
    assert too_new.result is CheckResult.WRONG
    assert "requires release 98.0.0 or later" in too_new.detail
    assert changed.result is CheckResult.WRONG
    assert "0001_schema.sql" in changed.detail
    assert "point DATABASE_URL to an empty database" in changed.remedy
    assert (empty.result, "empty" in empty.detail) == (None, True)


@pytest.mark.parametrize(
    ("member", "value", "what"),
    [
        ("chainId", lambda _: 1, "node"),
        ("paymentTokenDecimals", lambda now: now + 12, "token decimals"),
        ("deployBlock", lambda _: 10**9, "deployBlock"),
        ("deployBlock", lambda now: now + 3, "deployBlock"),
        ("askRegistry", lambda _: "0x" + "11" * 20, "contracts"),
    ],
)
async def test_address_book_that_is_not_this_market_s_is_wrong(
    well: dict[str, str], world: World, member: str, value: Callable[[int], object], what: str
) -> None:
    book = dict(world.market.address_book)
    book[member] = value(book[member])
    rows = await looked(well, ADDRESSES_JSON=json.dumps(book))
    assert what in wrongs(rows)
    assert wrongs(rows) <= {what, "relayer role", "history"}


async def test_relayer_without_role_and_funds_is_told_how_to_get_them(well: dict[str, str], world: World) -> None:
    relayer, book = world.wallets.with_role("relayer")[0].address, world.market.address_book
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        jobs = contract_at(chain, "JobRegistry", book["jobRegistry"])
        await chain.send(jobs, world.wallets.admin.address, "setRelayer", relayer, False)
    await world.anvil.call("anvil_setBalance", relayer, "0x1")
    rows = await looked(well)
    assert wrongs(rows) == {"relayer role", "relayer funds"}
    assert "jobRegistry" in rows["relayer role"].detail
    assert f"grant-relayer {relayer.lower()}" in rows["relayer role"].remedy


async def test_undersized_node_error_names_the_setting(well: dict[str, str], proxy: RpcProxy) -> None:
    def no_history(params: object, block: object) -> object:
        assert isinstance(params, list)
        return block if params[0] == "latest" else None

    with proxy.fault(RefuseWideRanges(7, "block range too wide")):
        rows = await looked(well, RPC_URL=proxy.url)
    assert rows["log range"].result is None
    assert "GETLOGS_CAP=" in rows["log range"].remedy
    with proxy.fault(Rewrite("eth_getBlockByNumber", no_history)):
        assert "history" in wrongs(await looked(well, RPC_URL=proxy.url))
    with proxy.fault(ErrorAnswer("eth_getBalance", -32000, "missing trie node")):
        assert "state" in wrongs(await looked(well, RPC_URL=proxy.url, CONFIRMATIONS=5))
    with proxy.fault(ErrorAnswer("eth_call", -32000, "gas limit is too high")):
        assert wrongs(await looked(well, RPC_URL=proxy.url)) & {"gas", "node"}


async def test_every_node_is_checked_in_its_own_row(well: dict[str, str], proxy: RpcProxy) -> None:
    rows = await looked(well, RPC_URLS=proxy.url)
    assert {name: row.result for name, row in rows.items()} == WELL | {"node 2": CheckResult.RIGHT}
    first = (rows[name].detail for name in ("history", "state", "log range", "gas"))
    assert all(detail in rows["node 2"].detail for detail in first)
    assert rows["node 2"].detail.startswith(proxy.url.removeprefix("http://"))


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ([Rewrite("eth_chainId", lambda _, __: "0x1")], "serves chain 1"),
        ([ErrorAnswer("eth_getLogs", -32000, "logs are pruned")], "history: the node has no blocks and logs"),
        ([ErrorAnswer("eth_getLogs", -32000, "no logs here")], "log range: the node rejects eth_getLogs"),
        ([ErrorAnswer("eth_getBalance", -32000, "missing trie node")], "state: the node has no state"),
        ([ErrorAnswer("eth_call", -32000, "gas limit is too high")], "gas: the node does not execute a call with"),
        ([HttpStatus(ANY, 503)], "503"),
        (older_head(50), "more than 5 blocks apart"),
    ],
)
async def test_faulty_further_node_fails_only_its_row(
    well: dict[str, str], proxy: RpcProxy, faults: Sequence[Fault], says: str
) -> None:
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(proxy.fault(fault))
        rows = await looked(well, RPC_URLS=f"{proxy.url}/?key=KEYOFTHENODE")
    assert wrongs(rows) == {"node 2"}
    assert says in rows["node 2"].detail
    assert "RPC_URLS" in rows["node 2"].remedy
    assert "KEYOFTHENODE" not in rows["node 2"].text


async def test_check_falls_back_to_the_next_node(well: dict[str, str]) -> None:
    rows = await looked(well, RPC_URL="http://127.0.0.1:1", RPC_URLS=well["RPC_URL"])
    assert wrongs(rows) == {"node"}
    assert rows["node 2"].result is CheckResult.RIGHT
    assert all(
        rows[name].result is CheckResult.RIGHT
        for name in ("contracts", "token decimals", "deployBlock", "relayer role")
    )


async def test_clock_that_is_wrong_is_seen_against_the_chain(
    well: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr("coordinatord.run.checks.nodes.time.time", lambda: now() - 3600)
    assert "clock and chain" in wrongs(await looked(well))


async def test_kubo_is_probed_in_its_own_language_and_asked_for_room(well: dict[str, str]) -> None:
    node = KuboNode()
    async with running_kubo(node):
        kubo = {"PIN_STORE": "kubo", "PIN_STORE_ENDPOINT": node.endpoint, "GATEWAY_URL": node.endpoint}
        rows = await looked(well, **kubo, PIN_STORE_KEY="", PIN_STORE_SECRET="", PIN_STORE_BUCKET="")
    assert wrongs(rows) == set()
    assert rows["room in Kubo"].result is CheckResult.RIGHT
    assert node.pins == set()


async def test_mock_escrow_and_its_peer_are_told_in_plain_words(well: dict[str, str]) -> None:
    key = "0x" + "02" * 32
    rows = await looked(well, ESCROW_MODE="mock", OPERATOR_KEY=key, PEER_URL="http://127.0.0.1:1")
    assert "for development" in rows["escrow"].detail
    assert wrongs(rows) == {"escrow peer"}
    static = await looked(well, ESCROW_MODE="static", OPERATOR_KEY=key)
    assert "can read the orders" in static["escrow"].detail
    assert static["escrow keys"].result is CheckResult.RIGHT
