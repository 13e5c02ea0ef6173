"""Custody in development mode: random keys in memory, rotated, and shared with peers.

An instance without a peer mints a generation when it starts and whenever the next one is due. An instance with a peer
uses the peer's generations. It mints its own only when a generation expires without a successor, because the peer is
down or waits for this instance. A starting instance treats keys that it cannot obtain as lost: the database records
which keys this deployment announced.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import attrs
import structlog

from common.box import PublicKey
from common.daemon.process import Fatal
from coordinatord.api.escrow import escrow_sql
from coordinatord.api.escrow.custody import KeyEvidence, mock_evidence
from coordinatord.api.escrow.escrow_sql import GenerationRow
from coordinatord.api.escrow.generations import Generation, Generations
from coordinatord.api.escrow.keys import open_with_any
from coordinatord.api.escrow.peer import NoKeys, Peer
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc, quantity
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import unreadable
from coordinatord.storage.database.connections import Connection, Database

log = structlog.get_logger(__name__)

# Interval of checks for a due generation.
_ROTATE_INTERVAL_S: Final = 5.0
# Interval of pulls until the first one succeeds.
_FIRST_PULL_INTERVAL_S: Final = 1.0
# Minimum time between pulls for wraps that do not open.
_MIN_PULL_INTERVAL_S: Final = 5.0
# Timeout of a required first pull.
_FIRST_PULL_TIMEOUT_S: Final = 60.0


@attrs.frozen(slots=True)
class MockSettings:
    release: int
    rotate_every_ms: int
    sweep_every_ms: int
    sync_every_s: int
    first_pull_required: bool
    clock_offset_ms: int

    @property
    def lead_ms(self) -> int:
        """Milliseconds between the minting and the announcement of a generation, enough for peers to pull twice."""
        return min(2000 * self.sync_every_s, self.rotate_every_ms // 2)


class MockCustody:
    def __init__(self, settings: MockSettings, database: Database, rpc: Rpc, peer: Peer | None, clock: Clock) -> None:
        self._settings = settings
        self._database = database
        self._rpc = rpc
        self._peer = peer
        self._clock = clock
        self._generations = Generations(settings.rotate_every_ms, settings.lead_ms)
        # Generation with an announcement that is recorded with its block.
        self._noted: bytes | None = None
        self._pulling = anyio.Lock()
        self._pulled_at = float("-inf")

    def announced(self) -> PublicKey | None:
        generation = self._generations.announced(self._now())
        return generation.key.public if generation is not None else None

    def held(self) -> tuple[Generation, ...]:
        return self._generations.held()

    def evidence(self, public: PublicKey) -> KeyEvidence:
        return mock_evidence(public, self._settings.release)

    async def open(self, seed_wrap: bytes) -> bytearray | None:
        """Open a wrap, if needed with the peer's newest keys: the peer may have minted one since the last pull."""
        seed = open_with_any(self._generations.newest_first(), seed_wrap)
        if seed is None and await self._pull_if_worth_it():
            seed = open_with_any(self._generations.newest_first(), seed_wrap)
        return seed

    async def has_lost_keys(self) -> bool:
        async with self._database.connection() as connection:
            return await escrow_sql.has_lost_keys(connection)

    async def begin(self) -> None:
        if self._peer is None:
            await self.rotate()
        elif self._settings.first_pull_required:
            await self._first_pull()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_every, _ROTATE_INTERVAL_S, self.rotate)
            tasks.start_soon(_every, self._settings.sweep_every_ms / 1000, self.sweep)
            if self._peer is not None:
                tasks.start_soon(self._keep_pulling)

    def end(self) -> None:
        self._generations.erase_all()

    async def rotate(self) -> None:
        """Mint the next generation when it is due, and record the announcement of the current one."""
        now = self._now()
        if self._peer is None:
            mints = self._generations.is_due(now)
        else:
            mints = len(self._generations) > 0 and self._generations.is_overdue(now)
        if mints:
            minted = self._generations.mint(now)
            await self._take([minted])
            log.info("escrow key minted", key=minted.public_key.hex(), announced_from=minted.announced_from)
        await self._note_announcement()

    async def sweep(self) -> None:
        """Erase generations past their retention. Tests may set this clock ahead."""
        ahead = self._now() + self._settings.clock_offset_ms
        due = {one.public_key for one in self._generations.past_retention(self._now())}
        gone = self._generations.past_retention(ahead)
        async with self._database.connection() as connection:
            for generation in gone:
                await escrow_sql.mark_erased(
                    connection, generation.public_key, too_early=generation.public_key not in due
                )
                log.info("escrow key erased", key=generation.public_key.hex())
            self._generations.erase(gone)
            await escrow_sql.record(connection, [_row(one) for one in self._generations.held()])
            await escrow_sql.drop_forgotten(connection)

    async def pull(self) -> NoKeys | None:
        """Pull the peer's keys. Return None on success."""
        if self._peer is None:
            raise AssertionError("no peer is configured")
        async with self._pulling:
            pulled = await self._peer.pull()
            self._pulled_at = self._clock()
            if isinstance(pulled, NoKeys):
                log.warning("escrow keys not pulled", reason=pulled.reason)
                return pulled
            await self._take(pulled)
        await self._note_announcement()
        return None

    def _now(self) -> int:
        return int(self._clock() * 1000)

    async def _take(self, generations: list[Generation]) -> None:
        """Record generations in the database, then hold them. The loss of an unrecorded key would go unnoticed."""
        known = {one.public_key for one in self._generations.held()}
        now, first = self._now(), not known
        fresh = [_row(one) for one in generations if one.public_key not in known]

        async def remember(connection: Connection) -> list[bytes]:
            await escrow_sql.record(connection, fresh)
            if not first:
                return []
            return await escrow_sql.mark_lost(connection, [row.public_key for row in fresh], now)

        try:
            lost = await self._database.transact(remember) if fresh else []
        except BaseException:
            for generation in generations:
                generation.key.erase()
            raise
        for public_key in lost:
            log.warning("escrow key lost", key=public_key.hex())
        added = self._generations.add(generations)
        if added:
            log.info("escrow keys held", count=len(self._generations), new=len(added))

    async def _note_announcement(self) -> None:
        generation = self._generations.announced(self._now())
        if generation is None or generation.public_key == self._noted:
            return
        try:
            head = quantity(await self._rpc.call("eth_blockNumber"))
        except RpcError as error:
            raise unreadable(error, "job_read") from error
        async with self._database.connection() as connection:
            await escrow_sql.mark_announced(connection, generation.public_key, head)
        self._noted = generation.public_key

    async def _first_pull(self) -> None:
        deadline = anyio.current_time() + _FIRST_PULL_TIMEOUT_S
        while (failure := await self.pull()) is not None:
            if failure.final or anyio.current_time() > deadline:
                raise Fatal(f"PEER_REQUIRED: {failure.reason}")
            await anyio.sleep(_FIRST_PULL_INTERVAL_S)

    async def _keep_pulling(self) -> None:
        while True:
            try:
                await self.pull()
            except Retryable as error:
                log.warning("escrow keys not pulled", reason=error.message)
            await anyio.sleep(self._settings.sync_every_s if self._generations else _FIRST_PULL_INTERVAL_S)

    async def _pull_if_worth_it(self) -> bool:
        if self._peer is None or self._clock() - self._pulled_at < _MIN_PULL_INTERVAL_S:
            return False
        return await self.pull() is None


async def _every(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Run `act` repeatedly. A failure of the database or the node waits for the next run, because the keys are in
    memory."""
    while True:
        try:
            await act()
        except Retryable as error:
            log.warning("escrow upkeep delayed", reason=error.message)
        await anyio.sleep(seconds)


def _row(generation: Generation) -> GenerationRow:
    return GenerationRow(generation.public_key, generation.announced_from)
