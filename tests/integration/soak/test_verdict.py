"""Break each promise once. Its check must report this."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Final

import asyncpg
import attrs
import pytest

from common.address_book import AddressBook
from common.daemon.secrets import Secret
from coordinatord.api.files.files_sql import object_key
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.pins.store import open_pin_store
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.indexer.scene import follower_of
from tests.integration.coordinatord.scene.stage import configured
from tests.soak.audits import install_audits
from tests.soak.verdict import INVARIANTS, Remains, Window, judged, violations
from tests.support.invariants.exits import exit_violations
from tests.support.invariants.objects import LONG_AGO
from tests.support.invariants.registries import registry_violations

Connection = asyncpg.Connection
Break = Callable[[World, Remains, "Connection[asyncpg.Record]"], Awaitable[None]]
JOB: Final = b"\x77" * 32


async def nothing(*_: object) -> None:
    """Change nothing."""


async def tokens_from_nowhere(world: World, remains: Remains, _: object) -> None:
    async with connect_to_chain(remains.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", world.market.token)
        client = world.wallets.with_role("client")[0].address
        await chain.send(token, client, "transfer", world.market.address_book["jobRegistry"], 1)


def statements(*all_: str | tuple[object, ...]) -> Break:
    """Run SQL statements in order, with arguments if given."""

    async def run(_world: World, _remains: Remains, connection: "Connection[asyncpg.Record]") -> None:
        for one in all_:
            sql, *arguments = (one,) if isinstance(one, str) else one
            await connection.execute(str(sql), *arguments)

    return run


async def lines_without_records(_: World, remains: Remains, connection: "Connection[asyncpg.Record]") -> None:
    pins = remains.pins
    async with open_pin_store(pins.endpoint, pins.bucket, Secret(pins.key), Secret(pins.secret), pins.region) as store:
        await store.put(object_key("file-in"), b'{"line": 1}\n\n{"line": 3}\n')
    await connection.execute(
        "insert into batches (id, owner, endpoint, input_file_id, completion_window, metadata, request_hash,"
        " expires_at, completed_at) values ('batch_x', '\\x01', '/v1/responses', 'file-in', '1h', '{}', '\\x01',"
        " now(), now())"
    )


async def nonce_used_elsewhere(world: World, _: Remains, connection: "Connection[asyncpg.Record]") -> None:
    """The outbox holds the first of two nonces."""
    relayer = world.wallets.with_role("relayer")[0].address
    nonce = int(await world.anvil.call("eth_getTransactionCount", relayer, "latest"), 16)
    for _ in range(2):
        await world.anvil.call("eth_sendTransaction", {"from": relayer, "to": relayer, "value": "0x1"})
    await connection.execute(
        "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost)"
        " values (1, $1, $2, '', '', 0, 'foreign', true)",
        bytes.fromhex(relayer[2:]),
        nonce,
    )


async def object_of_another(_: World, remains: Remains, connection: "Connection[asyncpg.Record]") -> None:
    """Serve an object that exists but differs from the one the row names."""
    pins = remains.pins
    async with open_pin_store(pins.endpoint, pins.bucket, Secret(pins.key), Secret(pins.secret), pins.region) as store:
        stored = await store.put("containers/01", b"one")
    await connection.execute(_OBJECT.replace(_LOST_CID, stored.cid))


_NONCES: Final = (
    "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost, created_at)"
    " select 1, decode(repeat('11', 20), 'hex'), n, '', '', 0, 'foreign', true, now() - $2::interval"
    " from unnest($1::bigint[]) as n"
)
_NEW, _OLD = timedelta(), timedelta(days=8)
_RELAYS: Final = (  # of one request
    "insert into relays (kind, subject, dedupe, target, calldata, priority, state)"
    " select 'post', '', '', '', '', 2, s::relay_state from unnest($1::text[]) as s"
)
_LEASE: Final = (
    "insert into leases (job_id, provider_id, model_id, expires_at) values ('', 1, 1, now() + interval '20 s')"
)
_LOST_CID: Final = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
_OBJECT: Final = (
    "insert into objects (key, subject, cid, bytes, sha256, attached, expires_at) values ('containers/01', '',"
    " '(cid)', 1, '', true, now() + interval '1 day')"
).replace("(cid)", _LOST_CID)
_REFUSED_EXIT: Final = (
    "insert into relays (kind, subject, dedupe, target, calldata, priority, state, reason)"
    " values ('settle', '', '', '', '', 0, 'dropped', 'relayer_funds')"
)
_DEAR_POST: Final = (
    "insert into gas_bookings (tx_id, signer, kind, newcomer, hour, gas)"
    " select id, '\\x22', 'post', false, current_hour(), 10000000 from relay_txs"
)
_JUNK: Final = (
    "insert into files (id, owner, purpose, filename, bytes, expires_at)"
    " values ('file-x', '\\x01', 'input', '', 300000000, now() + interval '1 day')"
)
_NONCE: Final = "insert into nonces (nonce, address, caller, expires_at) values ('n', '', '', now() + interval '1 h')"
_TWO_SESSIONS: Final = (
    "with used as (delete from nonces) insert into sessions (token_hash, address, expires_at)"
    " values ('\\x01', '', now() + interval '1 h'), ('\\x02', '', now() + interval '1 h')"
)
_SESSION: Final = "insert into sessions (token_hash, address, expires_at) values ('', '', now() + interval '25 h')"

BREAKS: Final[dict[str, tuple[str, Break]]] = {
    "nothing is broken": ("", nothing),
    "a relay that never ended": ("I1", statements((_RELAYS, ["queued"]))),
    "a request that took effect twice": ("I1 I2", statements((_RELAYS, ["refused", "mined", "mined"]))),
    "a nonce left out": ("I3", statements((_NONCES, [0, 1, 3], _NEW))),
    "old nonces that the janitor took away": (
        "",
        statements((_NONCES, [0, 5], _OLD), (_NONCES, [6, 7], _NEW)),
    ),
    "a row that the chain does not have": ("I4", statements("update providers set reputation = reputation + 1")),
    **{
        f"{what} that the chain does not have": ("I4", statements(change))
        for what, change in {
            "an owner of a model": "update models set owned_by = owned_by || 'x'",
            "a window": "update slas set allowed = not allowed",
            "a fee": "update fees set fee_bps = fee_bps + 1",
            "an entry of the allowlist": "insert into allowlist values (decode(repeat('01', 32), 'hex'), 1, '')",
            "an ask": "insert into asks values (1, 1, 60, 1, 1)",
            "a time of asks": "insert into ask_times values (1, 1)",
        }.items()
    },
    "a nonce that the outbox does not know": ("I3", nonce_used_elsewhere),
    "tokens that are nobody's": ("I5", tokens_from_nowhere),
    "a batch that ended without its lines": ("I6", lines_without_records),
    "an object that was lost": ("I7", statements(_OBJECT)),
    "an object that is another one's": ("I7", object_of_another),
    "a session that no nonce opened": ("I8", statements(_SESSION.replace("25 h", "1 h"))),
    "a nonce that opened two sessions": ("I8", statements(_NONCE, _TWO_SESSIONS)),
    "a session that outlives its day": ("I8", statements(_SESSION)),
    "a lease that changes hands while it lives": ("I9", statements(_LEASE, "update leases set provider_id = 2")),
    "a settle that was refused for want of gas": ("I11", statements(_REFUSED_EXIT)),
    "a wallet whose posts cost more than its budget": ("I12", statements((_NONCES, [*range(100)], _NEW), _DEAR_POST)),
    "junk beyond what a new wallet may keep": ("I12", statements(_JUNK)),
    "a lease that is taken away and given to another while it lives": (
        "I9",
        statements(_LEASE, "delete from leases", _LEASE.replace("('', 1", "('', 2")),
    ),
    "a lease that lapsed and was given on": (
        "",
        statements(_LEASE, "update leases set expires_at = now()", "update leases set provider_id = 2"),
    ),
}


@pytest.fixture
def remains(world: World, database_url: str) -> Remains:
    return Remains(world.anvil, database_url, world.pins, address_book(world), configured(world, database_url))


@pytest.fixture
async def connection(remains: Remains) -> AsyncIterator["Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(remains.database_url)
    await migrate(opened)
    await install_audits(remains.database_url)
    yield opened
    await opened.close()


async def index(world: World, book: AddressBook, connection: "Connection[asyncpg.Record]") -> None:
    async with open_rpc(world.anvil.rpc_url) as rpc:
        await follower_of(NodeSource(rpc, LogDecoder(book)), world, 64).catch_up(connection)


# Rows of the catalogue and of asks that the chain lacks. A window has not the events that would make them.
WHOLE_CHAIN_ONLY: Final = {
    "an owner of a model that the chain does not have",
    "an ask that the chain does not have",
}


@pytest.mark.parametrize("what", BREAKS)
async def test_each_broken_promise_is_seen_as_its_own(
    what: str, world: World, remains: Remains, connection: "Connection[asyncpg.Record]"
) -> None:
    """Check the window of a long run, and then the whole chain, which rebuilds the index."""
    invariants, break_it = BREAKS[what]
    on_the_chain = break_it in (tokens_from_nowhere, nonce_used_elsewhere)
    if on_the_chain:
        await break_it(world, remains, connection)
    await index(world, remains.book, connection)
    if not on_the_chain:
        await break_it(world, remains, connection)
    for window in (Window(remains.book.deploy_block, LONG_AGO), None):
        if window is None or what not in WHOLE_CHAIN_ONLY:
            verdict = judged(await violations(attrs.evolve(remains, window=window), ()))
            assert [name for name, one in verdict.items() if not one["holds"]] == invariants.split(), window


async def test_unpayable_exit_of_an_empty_account_is_no_violation(
    connection: "Connection[asyncpg.Record]",
) -> None:
    await connection.execute(_REFUSED_EXIT)
    await connection.execute("update relays set ended_at = to_timestamp(1000)")
    assert await exit_violations(connection, emptied=[(990, 1001)]) == []
    for emptied in ([], [(1001, 1002), (990, 999)]):
        assert len(await exit_violations(connection, emptied=emptied)) == 1


async def test_job_that_was_promised_and_is_not_on_the_chain_is_lost(
    world: World, remains: Remains, connection: "Connection[asyncpg.Record]"
) -> None:
    await index(world, remains.book, connection)
    verdict = judged(await violations(remains, {JOB}))
    assert not verdict["I1"]["holds"]
    assert JOB.hex() in verdict["I1"]["detail"]
    assert [name for name in INVARIANTS if verdict[name]["holds"]] == [name for name in INVARIANTS if name != "I1"]


async def test_index_is_compared_with_the_registries_too(
    world: World, remains: Remains, connection: "Connection[asyncpg.Record]"
) -> None:
    await index(world, remains.book, connection)
    async with open_rpc(world.anvil.rpc_url) as rpc:
        assert await registry_violations(connection, rpc, remains.book) == []
        await connection.execute("update providers set ceiling = ceiling + 1 where provider_id = 1")
        (found,) = await registry_violations(connection, rpc, remains.book)
    assert found.startswith("I4: provider 1 is")


async def test_foreign_nonce_is_noted_although_a_reorg_gives_it_back(database_url: str) -> None:
    await install_audits(database_url)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost)"
            " values (1, '\\x01', 7, '', '', 0, 'foreign', true)"
        )
        await connection.execute("update relay_txs set lost = false, purpose = 'fill'")
        noted = await connection.fetch("select account, nonce from foreign_history")
    finally:
        await connection.close()
    assert [tuple(row) for row in noted] == [(b"\x01", 7)]
