"""Pending transactions of one account: as stored, plus the state of their sending."""

import math
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from coordinatord.chain.relayer.fees import Fee
from coordinatord.chain.relayer.tx_size import BASE_GAS

_FIRST_RETRY_S: Final = 0.25
_MAX_RETRY_S: Final = 5.0
# A node may drop a transaction that it accepted (a restart, a full pool), so the transaction is rebroadcast.
REMIND_AFTER_S: Final = 10.0
# Longest delay in seconds between a block's state and its receipts.
RECEIPTS_LAG_S: Final = 1.0
# Refused transactions wait for this fraction of a turn.
REFUSED_SHARE: Final = 5
# Codes of refusals.
RATE_LIMITED: Final = "rate_limited"
ENDPOINT_REFUSED: Final = "endpoint_refused"


@attrs.frozen(slots=True)
class Version:
    """Signed bytes for a nonce. `fills` marks a self-transfer that carries no relay."""

    hash: bytes
    raw: bytes = attrs.field(repr=False)
    max_fee: int
    max_tip: int
    fills: bool


@attrs.define(slots=True)
class PendingTx:
    """Nonce with all versions ever signed for it. All versions are watched, and the latest is sent."""

    id: int
    nonce: int
    target: bytes
    gas: int
    versions: list[Version]
    calldata: bytes = attrs.field(default=b"", repr=False)
    # Time of the next broadcast, by the event loop's clock.
    due: float = 0.0
    # Consecutive broadcasts that no node accepted.
    failures: int = 0
    # A node refused the fee, or its turn passed.
    underpriced: bool = False
    # A node refused it for good, or its turn passed too often. A self-transfer replaces it.
    unsendable: bool = False
    turns_passed: int = 0
    # No node has these bytes, because nodes refused every broadcast. Only known for bytes signed in this term: an
    # earlier term may have sent its bytes without receiving the answer.
    unsent: bool = False
    # Code of the last refusal, as stored. None once a node may have the bytes.
    refusal: str | None = None
    # Expected gas of its ops, without margin. Only known for transactions signed in this term.
    expected: int = 0
    # Time of a node's first acceptance.
    taken_at: float | None = None
    # Start of its turn: the time of a node's first verdict on the latest version.
    answered_at: float | None = None
    # Head at the start of its turn.
    answered_head: int = 0
    # A node has the latest version.
    is_accepted: bool = False
    # Time since when its nonce is used without a receipt.
    missed_at: float | None = None

    @property
    def latest(self) -> Version:
        return self.versions[-1]

    @property
    def fee(self) -> Fee:
        return Fee(self.latest.max_fee, self.latest.max_tip)

    @property
    def cost(self) -> int:
        """Highest amount that the transaction may cost."""
        return (BASE_GAS if self.latest.fills else self.gas) * self.latest.max_fee

    def replaced_by(self, version: Version) -> None:
        self.versions.append(version)
        self.due, self.failures, self.underpriced, self.unsendable = 0.0, 0, False, False
        self.answered_at, self.is_accepted = None, False

    def was_taken(self, now: float) -> None:
        if self.taken_at is None:
            self.taken_at = now
        self.failures, self.due = 0, now + REMIND_AFTER_S

    def was_answered(self, now: float, head: int, *, accepted: bool) -> None:
        """Note a node's verdict on the latest version."""
        if self.answered_at is None or (accepted and not self.is_accepted):
            self.answered_at, self.answered_head = now, head
        self.is_accepted |= accepted

    def turn_has_passed(self, since: float, now: float, mined_within: float) -> bool:
        """Return True if the transaction's turn is over, so that its fee should rise.

        A turn starts when a node has answered the latest version and the transaction's nonce is the account's next one,
        which it became at `since`. The second turn lasts twice as long as the first, and each later turn four times as
        long.
        """
        if self.answered_at is None:
            return False
        turn = mined_within if self.is_accepted else mined_within / REFUSED_SHARE
        return now >= max(self.answered_at, since) + turn * (1 << min(self.turns_passed, 2))

    def is_missing(self, now: float) -> bool:
        """Return True if the transaction is lost: its nonce was used a while ago, and no receipt exists.

        A node may count a nonce before it has the receipt. A post given up wrongly would be refused as its own
        duplicate.
        """
        if self.missed_at is None:
            self.missed_at = now
        return now >= self.missed_at + RECEIPTS_LAG_S

    def was_not_taken(self, now: float) -> None:
        self.due = now + min(_FIRST_RETRY_S * 2**self.failures, _MAX_RETRY_S)
        self.failures = min(self.failures + 1, 10)


class PendingTxs:
    """Transactions by id and by the hash of any version. Iterates in nonce order."""

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

    def next_due(self) -> float | None:
        return min((tx.due for tx in self._by_id.values()), default=None)

    def oldest_taken_at(self) -> float:
        """Return when a node first accepted the oldest accepted transaction, or infinity if none is accepted."""
        return min((tx.taken_at for tx in self._by_id.values() if tx.taken_at is not None), default=math.inf)

    @property
    def cost(self) -> int:
        return sum(tx.cost for tx in self._by_id.values())
