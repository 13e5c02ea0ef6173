"""The promises of coordinators, checked at every broadcast and block of a simulated run, and at its end."""

from collections import Counter
from typing import Final
from unittest.mock import patch

import asyncpg
import httpx

from common.api.states import JobState
from common.daemon.secrets import Secret
from common.inclusion import rlp
from common.keccak import keccak256
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.pins.requests import RequestSigner, StoreRequests
from coordinatord.storage.pins.store import PinningStore
from tests.simulation.coordinator.actors import Told
from tests.simulation.coordinator.chain import SimulatedChain
from tests.simulation.coordinator.clocks import START
from tests.simulation.coordinator.ground import Ground
from tests.simulation.coordinator.store import SimulatedStore
from tests.simulation.coordinator.wire import ControlConnection
from tests.soak.audits import lease_violations, opened_without_nonce
from tests.support.invariants import market_log, nonces
from tests.support.invariants.batches import broken_batches
from tests.support.invariants.exits import exit_violations
from tests.support.invariants.funds import fund_violations
from tests.support.invariants.jobs import job_violations
from tests.support.invariants.market_log import read_market_log
from tests.support.invariants.nonces import nonce_violations
from tests.support.invariants.registries import registry_violations
from tests.support.invariants.relays import relay_violations
from tests.support.invariants.replay import replay_violations
from tests.support.invariants.sessions import session_violations
from tests.support.invariants.transfers import transfer_violations

_SETTLE_AGAIN_S: Final = 150.0  # including all faults
_UNDER_WAY: Final = "select count(*) from relays where state in ('queued', 'signed')"
_UNENDED: Final = "select count(*) from jobs where state in (0, 1)"
_BATCHES: Final = (
    "select count(*) from batches where coalesce(completed_at, failed_at, expired_at, cancelled_at) is null"
)
_AT: Final = "select coalesce(max(block_number), 0) from index_position"
_NONCES: Final = (
    "select encode(account, 'hex'), count(*), max(nonce) - min(nonce) + 1 from relay_txs group by 1"
    " having count(*) <> max(nonce) - min(nonce) + 1"
)
_LEASED: Final = (
    "select count(*) from (select lag(provider_id) over leases as held_by, lag(expires_at) over leases as held_until,"
    " provider_id, at from lease_history window leases as (partition by job_id order by seq)) h"
    " where provider_id <> held_by and provider_id <> 0 and held_by <> 0 and held_until > at"
)
# Requests that the outbox lists as mined more than once, with their blocks.
_DOUBLED: Final = (
    "select kind, encode(dedupe, 'hex'), t.block_number, encode(t.block_hash, 'hex') from relays r"
    " join relay_txs t on t.id = r.tx_id where r.state = 'mined' and t.block_number is not null and (kind, dedupe) in"
    " (select kind, dedupe from relays where state = 'mined' group by kind, dedupe having count(*) > 1)"
)


class Promises:
    """`broken` holds each violation once."""

    def __init__(
        self,
        ground: Ground,
        database_url: str,
        admin: ControlConnection,
        told: Told,
        *,
        chain: SimulatedChain,
        store: SimulatedStore,
    ) -> None:
        self._url, self.store, trace = database_url, store, chain.faults.trace
        self.ground, self.admin, self.told, self.trace, self.chain = ground, admin, told, trace, chain
        self.broken: list[str] = []

    def breaks(self, *found: str) -> None:
        for what in found:
            if what not in self.broken:
                self.broken.append(what)
                self.trace.add(f"BROKEN: {what[:300]}")

    # --- at every step ---

    def before_broadcast(self, raw: bytes) -> None:
        """I10: the outbox has committed these bytes before the node gets them."""
        tx_hash = keccak256(raw).hex()
        stored = f"select 1 from relay_tx_versions where hash = '\\x{tx_hash}'"  # noqa: S608 - a digest
        if not self.admin.query(stored):
            nonce = int.from_bytes(_fields(raw)[1], "big")
            self.breaks(f"I10: a transaction of nonce {nonce} was broadcast before its bytes were stored")

    def at_a_block(self) -> None:
        """Check everything that must hold at any time."""
        for account, count, wide in self.admin.query(_NONCES):
            self.breaks(f"I3: {account} has {count} transactions for {wide} nonces")
        if self.admin.query(_LEASED) != [("0",)]:
            self.breaks("I9: a job was leased to two providers at a time")
        self._of_requests()

    def _of_requests(self) -> None:
        """I2: a request takes effect once on the current chain. A dead coordinator's outbox may still show a relay as
        mined in a block that a reorg removed, until a process checks. Such relays do not count."""
        took_effect: Counter[tuple[str, str]] = Counter()
        for kind, request, number, block in self.admin.query(_DOUBLED):
            there = self.chain.node.call("eth_getBlockByNumber", hex(int(number)), False)
            took_effect[kind, request] += there is not None and there["hash"] == f"0x{block}"
        for (kind, _), times in took_effect.items():
            if times > 1:
                self.breaks(f"I2: a {kind} was mined {times} times")

    # --- at the end ---

    def at_rest(self) -> bool:
        return all(self.admin.query(what) == [("0",)] for what in (_UNDER_WAY, _UNENDED, _BATCHES))

    async def judge(self, noisy: float) -> None:
        """Check the end, when faults are long over and the chain stands still."""
        if (at := int(self.admin.query(_AT)[0][0])) != (head := self.chain.node.height()):
            self.breaks(f"I4: the index stands at {at}, and the chain at {head}")
            return
        connection = await asyncpg.connect(self._url)
        try:
            with (
                patch.object(market_log, "node_client", self._client),
                patch.object(nonces, "node_client", self._client),
            ):
                self.breaks(*await self._found(connection))
        finally:
            await connection.close()
        self._of_jobs(noisy)

    async def _found(self, connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
        ground = self.ground
        book, url = ground.config(ground.postgres.url(), 0).addresses, ground.rpc_url
        rpc = Rpc(self._post)
        log = await read_market_log(url, book)
        promised = {bytes.fromhex(job[2:]) for job in self.told.promised}
        return [
            *await relay_violations(connection, rpc, stuck_after=0),
            *await job_violations(rpc, book, promised=promised),
            *await nonce_violations(connection, url, book.deploy_block),
            *await replay_violations(connection, log),
            *await registry_violations(connection, rpc, book),
            *await fund_violations(rpc, book),
            *transfer_violations(log, book.job_registry),
            *await session_violations(connection),
            *await opened_without_nonce(connection),
            *await lease_violations(connection),
            *await exit_violations(connection),
            *await self._of_batches(),
        ]

    async def _of_batches(self) -> list[str]:
        unended = int(self.admin.query(_BATCHES)[0][0])
        if unended:
            return [f"I6: {unended} batches have not ended"]
        signer = RequestSigner(Secret("key"), Secret("secret"), "us-east-1")
        async with self.store.open_http() as http, open_database(self._url, max_size=2) as database:
            return await broken_batches(database, PinningStore(StoreRequests(http, "http://store/bucket", signer)))

    def rows(self) -> dict[str, tuple[int, int, int]]:
        """Return state, end reason and provider of each job in the index."""
        told = self.admin.query("select encode(job_id, 'hex'), state, ended_because, provider_id from jobs")
        return {f"0x{job}": (int(state), int(because), int(whose or 0)) for job, state, because, whose in told}

    def _of_jobs(self, noisy: float) -> None:
        rows = self.rows()
        for job, at in self.told.ordered.items():
            if at > noisy and job not in self.told.posted:
                self.breaks(f"I13: {self.told.named(job)} was ordered in quiet, and not posted: {self.told.refused}")
        for job, at in self.told.posted.items():
            state = rows.get(job)
            named = self.told.named(job)
            if state is None and job in self.told.promised:
                self.breaks(f"I1: {named} was promised, and the index does not know it")
            elif state is None:
                continue
            elif state[0] in (0, 1):
                self.breaks(f"I13: {named} has not ended: it is {('open', 'claimed')[state[0]]}")
            elif job in self.told.settled and state[0] != JobState.SETTLED and self._had_time(job):
                self.breaks(f"I14: {named} was settled by a 201, had time to be settled again, and ended as {state}")
            elif (
                # A post answered in quiet time may be of a job claimed in noisy time.
                self.told.ordered.get(job, at) > noisy
                and state[0] != 2
                and state[1] != 3
                and job not in self.told.cancelled
            ):
                self.breaks(f"I13: {named} was ordered in quiet and ended as {state}")
            if at > noisy and job in self.told.sealed and not self.told.opened.get(job):
                self.breaks(f"I13: {named} was bought in quiet, and its answer was not read: {state}")

    def _had_time(self, job: str) -> bool:
        """Return whether the job could be settled again before its window ended, after a reorg of any depth."""
        ((claimed_at, window),) = self.admin.query(
            f"select claimed_at, sla_secs from jobs where job_id = '\\x{job[2:]}'"  # noqa: S608 - a digest
        )
        return int(claimed_at) + int(window) > START + self.told.settled[job] + _SETTLE_AGAIN_S

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        return self.chain.node.raw(body)

    def _client(self) -> httpx.AsyncClient:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, content=self.chain.node.raw(request.content)[1])

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def _fields(raw: bytes) -> list[bytes]:
    fields = rlp.decode_list(raw[1:])
    return [field for field in fields if isinstance(field, bytes)]
