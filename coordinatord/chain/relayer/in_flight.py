"""The transactions of one account whose nonces are not known to be used: as stored, plus how their sending goes."""

import math
from collections.abc import Iterable, Iterator
from typing import Final, Self

import attrs

from coordinatord.chain.relayer.fees import Fee
from coordinatord.chain.relayer.gas_book import BASE_GAS, OpKind
from coordinatord.chain.relayer.transactions_sql import StoredTx, Version

_FIRST_RETRY: Final = 0.25  # seconds
_LAST_RETRY: Final = 5.0
# A node may forget a transaction that it took (a restart, a full pool): identical bytes remind it.
REMIND_AFTER: Final = 10.0
_REMINDED_OF: Final = 32  # at once, where a block shows that a node lost what it took: two blocks' worth, or a megabyte
RECEIPTS_LAG: Final = 1.0  # seconds, far beyond what a node takes from a block's state to its receipts
# What proves that identical bytes are refused for good, whatever a node says of them: so many refusals in a row, and
# that it works for others meanwhile: it took another transaction of ours, or its chain went on for this long.
_REFUSALS: Final = 5
_REFUSED_FOR: Final = 20.0  # seconds
_REFUSED_OVER: Final = 2  # blocks
RATE_LIMITED: Final = "rate_limited"  # code of a refusal


@attrs.frozen(slots=True)
class Life:
    """Signs of life of a node: transactions of ours that it took so far, and its head."""

    taken: int
    head: int


@attrs.define(slots=True)
class Refusals:
    """Answers in a row that say no to the same bytes, in words that by themselves prove nothing."""

    count: int = 0
    since: float = 0.0
    life: Life = Life(0, 0)  # as of the first of them

    def add(self, now: float, life: Life) -> None:
        if not self.count:
            self.since, self.life = now, life
        self.count += 1

    def for_good(self, now: float, life: Life) -> bool:
        if self.count < _REFUSALS:
            return False
        went_on = now >= self.since + _REFUSED_FOR and life.head >= self.life.head + _REFUSED_OVER
        return life.taken > self.life.taken or went_on


@attrs.define(slots=True)
class PendingTx:
    """All versions are watched; the last one is what is sent."""

    id: int
    nonce: int
    target: bytes
    gas: int
    versions: list[Version]
    due: float = 0.0  # when it is to be sent (again), by the event loop's clock
    failures: int = 0  # sendings in a row that nobody took
    underpriced: bool = False  # a node refused it for its fee, or took it and let it wait in vain
    unsendable: bool = False  # a node refused it for good: its nonce needs another transaction
    refusals: Refusals = attrs.field(factory=Refusals)
    # No node can have these bytes: nodes refused every sending so far. Known only of what this term signed: an earlier
    # term may have sent the bytes without hearing the answer.
    unsent: bool = False
    refusal: str | None = None  # code of the last refusal, as stored; None once a node may have the bytes
    kinds: tuple[OpKind, ...] = ()  # of its ops; known of what was signed in this term
    intrinsic: int = 0  # gas for its own bytes
    taken_at: float | None = None  # when a node first took it
    latest_taken_at: float | None = None  # when a node first took its last version
    missed_at: float | None = None  # since when its nonce is used and nobody knows a receipt of it

    @classmethod
    def of(cls, stored: StoredTx) -> Self:
        versions = list(stored.versions)
        return cls(stored.id, stored.nonce, stored.target, stored.gas, versions, refusal=stored.refusal)

    @property
    def latest(self) -> Version:
        return self.versions[-1]

    @property
    def fee(self) -> Fee:
        return Fee(self.latest.max_fee, self.latest.max_tip)

    @property
    def cost(self) -> int:
        """Most that a node sets aside for it."""
        return (BASE_GAS if self.latest.fills else self.gas) * self.latest.max_fee

    def replaced_by(self, version: Version) -> None:
        self.versions.append(version)
        self.due, self.failures, self.underpriced, self.unsendable = 0.0, 0, False, False
        self.refusals = Refusals()
        self.latest_taken_at = None

    def was_taken(self, now: float) -> None:
        if self.taken_at is None:
            self.taken_at = now
        if self.latest_taken_at is None:
            self.latest_taken_at = now
        self.failures, self.due = 0, now + REMIND_AFTER
        self.refusals = Refusals()

    def was_with_a_node(self, since: float) -> bool:
        return self.latest_taken_at is not None and self.latest_taken_at < since

    def waits_in_vain(self, since: float, now: float, patience: float) -> bool:
        """True when a node has had it for longer than it should take, with its nonce the next one `since`. Each version
        is given twice the time of the one before."""
        if self.latest_taken_at is None:
            return False
        return now >= max(self.latest_taken_at, since) + patience * (1 << (len(self.versions) - 1))

    def is_missing(self, now: float) -> bool:
        """True when it is lost: its nonce was used a while ago, and its receipt has not come. A node may count what it
        is just mining before it can tell the receipt, and a post given up wrongly is refused as its own duplicate."""
        if self.missed_at is None:
            self.missed_at = now
        return now >= self.missed_at + RECEIPTS_LAG

    def was_not_taken(self, now: float) -> None:
        self.due = now + min(_FIRST_RETRY * 2**self.failures, _LAST_RETRY)
        self.failures = min(self.failures + 1, 10)


class PendingTxs:
    """By id, by any version's hash, in nonce order."""

    def __init__(self, txs: Iterable[PendingTx] = ()) -> None:
        self._by_id: dict[int, PendingTx] = {}
        self._by_hash: dict[bytes, PendingTx] = {}
        for tx in txs:
            self.add(tx)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, tx: PendingTx) -> bool:
        return tx.id in self._by_id

    def __iter__(self) -> Iterator[PendingTx]:
        return iter(sorted(self._by_id.values(), key=lambda tx: tx.nonce))

    def add(self, tx: PendingTx) -> None:
        self._by_id[tx.id] = tx
        for version in tx.versions:
            self._by_hash[version.hash] = tx

    def replace(self, tx: PendingTx, version: Version) -> None:
        tx.replaced_by(version)
        self._by_hash[version.hash] = tx

    def remove(self, tx: PendingTx) -> None:
        del self._by_id[tx.id]
        for version in tx.versions:
            del self._by_hash[version.hash]

    def with_id(self, tx_id: int) -> PendingTx | None:
        return self._by_id.get(tx_id)

    def with_hash(self, tx_hash: bytes) -> PendingTx | None:
        return self._by_hash.get(tx_hash)

    def due(self, now: float) -> list[PendingTx]:
        return [tx for tx in self if tx.due <= now]

    def remind_of_lost(self, since: float, room: int) -> None:
        """Make the first transactions due at once where a node has lost them: it had the one whose turn it is `since`
        before the block before the last, and that one went by without it, with as much gas left as `room`."""
        waiting = list(self)
        if waiting and waiting[0].was_with_a_node(since) and waiting[0].gas <= room:
            for tx in waiting[:_REMINDED_OF]:
                if tx.was_with_a_node(since):
                    tx.due = 0.0

    def next_due(self) -> float | None:
        return min((tx.due for tx in self._by_id.values()), default=None)

    def oldest_taken_at(self) -> float:
        """Since when a node has had the one that it has had for longest; the end of time when it has none."""
        return min((tx.taken_at for tx in self._by_id.values() if tx.taken_at is not None), default=math.inf)

    @property
    def cost(self) -> int:
        return sum(tx.cost for tx in self._by_id.values())
