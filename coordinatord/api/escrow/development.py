"""Custody in development mode: random keys in memory, rotated, and shared with peers. A generation is one such key.

An instance without a peer mints a generation when it starts and whenever the next generation is due. An instance with a
peer uses the peer's generations. It mints a generation only if the newest has expired without a successor. This happens
if the peer is down, or if the peer waits for a generation of this instance. The database records which keys this
deployment announced. When an instance obtains its first keys, it marks all other recorded keys as lost.
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
from coordinatord.api.escrow.peer import FailedPull, Peer
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc, decode_quantity
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import view_error
from coordinatord.storage.database.connections import Connection, Database

log = structlog.get_logger(__name__)

# Interval of checks for a due generation.
_ROTATE_INTERVAL_S: Final = 5.0
# Interval of pulls until the first one succeeds.
_FIRST_PULL_INTERVAL_S: Final = 1.0
# Minimum time between pulls that are triggered by wraps that no held key opens.
_MIN_PULL_INTERVAL_S: Final = 5.0
# Timeout of a required first pull.
_FIRST_PULL_TIMEOUT_S: Final = 60.0


@attrs.frozen(slots=True)
class MockSettings:
    release_ordinal: int
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
        # Public key whose announcement is recorded in the database.
        self._recorded_key: bytes | None = None
        self._pulling = anyio.Lock()
        self._pulled_at = float("-inf")

    def current_key(self) -> PublicKey | None:
        generation = self._generations.newest_announced(self._now_ms())
        return generation.key.public if generation is not None else None

    def held_generations(self) -> tuple[Generation, ...]:
        return self._generations.oldest_first()

    def build_evidence(self, public: PublicKey) -> KeyEvidence:
        return mock_evidence(public, self._settings.release_ordinal)

    async def open_wrap(self, seed_wrap: bytes) -> bytearray | None:
        """Open a wrap. If no held key opens it, pull the peer's keys and try again, because the peer may have minted a
        key since the last pull."""
        seed = open_with_any(self._generations.keys_newest_first(), seed_wrap)
        if seed is None and await self._pull_unless_recent():
            seed = open_with_any(self._generations.keys_newest_first(), seed_wrap)
        return seed

    async def has_lost_keys(self) -> bool:
        async with self._database.connection() as connection:
            return await escrow_sql.has_lost_keys(connection)

    async def acquire_first_key(self) -> None:
        if self._peer is None:
            await self.rotate()
        elif self._settings.first_pull_required:
            await self._pull_first_key()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_repeat_every, _ROTATE_INTERVAL_S, self.rotate)
            tasks.start_soon(_repeat_every, self._settings.sweep_every_ms / 1000, self.sweep)
            if self._peer is not None:
                tasks.start_soon(self._keep_pulling)

    def wipe_keys(self) -> None:
        self._generations.erase_all()

    async def rotate(self) -> None:
        """Mint the next generation when it is due, and record the announcement of the current one."""
        now = self._now_ms()
        if self._peer is None:
            must_mint = self._generations.is_due(now)
        else:
            must_mint = len(self._generations) > 0 and self._generations.is_overdue(now)
        if must_mint:
            minted = self._generations.mint(now)
            await self._record_and_hold([minted])
            log.info("escrow key minted", key=minted.public_key.hex(), announced_from=minted.announced_from_ms)
        await self._record_announcement()

    async def sweep(self) -> None:
        """Erase generations past their retention. `clock_offset_ms` sets the clock ahead in tests."""
        ahead = self._now_ms() + self._settings.clock_offset_ms
        due = {one.public_key for one in self._generations.find_expired(self._now_ms())}
        gone = self._generations.find_expired(ahead)
        async with self._database.connection() as connection:
            for generation in gone:
                await escrow_sql.mark_erased(
                    connection, generation.public_key, too_early=generation.public_key not in due
                )
                log.info("escrow key erased", key=generation.public_key.hex())
            self._generations.erase(gone)
            await escrow_sql.record_keys(connection, [_generation_row(one) for one in self._generations.oldest_first()])
            await escrow_sql.delete_old_records(connection)

    async def pull_keys(self) -> FailedPull | None:
        """Pull the peer's keys. Return None on success."""
        if self._peer is None:
            raise AssertionError("no peer is configured")
        async with self._pulling:
            pulled = await self._peer.pull_keys()
            self._pulled_at = self._clock()
            if isinstance(pulled, FailedPull):
                log.warning("escrow keys not pulled", reason=pulled.reason)
                return pulled
            await self._record_and_hold(pulled)
        await self._record_announcement()
        return None

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _record_and_hold(self, generations: list[Generation]) -> None:
        """Record generations in the database before holding them, because the loss of an unrecorded key would go
        unnoticed."""
        known = {one.public_key for one in self._generations.oldest_first()}
        now, first = self._now_ms(), not known
        fresh = [_generation_row(one) for one in generations if one.public_key not in known]

        async def record_keys(connection: Connection) -> list[bytes]:
            await escrow_sql.record_keys(connection, fresh)
            if not first:
                return []
            return await escrow_sql.mark_lost(connection, [row.public_key for row in fresh], now)

        try:
            lost = await self._database.transact(record_keys) if fresh else []
        except BaseException:
            for generation in generations:
                generation.key.erase()
            raise
        for public_key in lost:
            log.warning("escrow key lost", key=public_key.hex())
        added = self._generations.add(generations)
        if added:
            log.info("escrow keys held", count=len(self._generations), new=len(added))

    async def _record_announcement(self) -> None:
        generation = self._generations.newest_announced(self._now_ms())
        if generation is None or generation.public_key == self._recorded_key:
            return
        try:
            head = decode_quantity(await self._rpc.call("eth_blockNumber"))
        except RpcError as error:
            raise view_error(error, "job_read") from error
        async with self._database.connection() as connection:
            await escrow_sql.mark_announced(connection, generation.public_key, head)
        self._recorded_key = generation.public_key

    async def _pull_first_key(self) -> None:
        deadline = anyio.current_time() + _FIRST_PULL_TIMEOUT_S
        while (failure := await self.pull_keys()) is not None:
            if failure.is_final or anyio.current_time() > deadline:
                raise Fatal(f"PEER_REQUIRED: {failure.reason}")
            await anyio.sleep(_FIRST_PULL_INTERVAL_S)

    async def _keep_pulling(self) -> None:
        while True:
            try:
                await self.pull_keys()
            except Retryable as error:
                log.warning("escrow keys not pulled", reason=error.message)
            await anyio.sleep(self._settings.sync_every_s if self._generations else _FIRST_PULL_INTERVAL_S)

    async def _pull_unless_recent(self) -> bool:
        if self._peer is None or self._clock() - self._pulled_at < _MIN_PULL_INTERVAL_S:
            return False
        return await self.pull_keys() is None


async def _repeat_every(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    """Run `action` repeatedly, with pauses of `seconds`. Log a Retryable and continue, because the keys in memory
    remain usable."""
    while True:
        try:
            await action()
        except Retryable as error:
            log.warning("escrow upkeep delayed", reason=error.message)
        await anyio.sleep(seconds)


def _generation_row(generation: Generation) -> GenerationRow:
    return GenerationRow(generation.public_key, generation.announced_from_ms)
