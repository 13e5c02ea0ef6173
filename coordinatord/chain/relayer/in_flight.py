"""Pending transactions of one account: as stored, plus the state of their sending."""

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from coordinatord.chain.relayer.fees import Fee
from coordinatord.chain.relayer.tx_size import BASE_GAS

_FIRST_RETRY_PAUSE_S: Final = 0.25
_MAX_RETRY_PAUSE_S: Final = 5.0
# A node may drop a transaction that it accepted (a restart, a full pool), so the transaction is rebroadcast.
REBROADCAST_INTERVAL_S: Final = 10.0
# Longest time in seconds from when a node counts a nonce as used until the node has the receipt.
MAX_RECEIPT_LAG_S: Final = 1.0
# A transaction's turn is the time that it has to be mined before its fee is raised. The turn of a transaction that no
# node accepted is shorter by this factor.
REFUSED_TURN_DIVISOR: Final = 5
# Codes for `PendingTx.refusal_code`.
RATE_LIMITED: Final = "rate_limited"
ENDPOINT_REFUSED: Final = "endpoint_refused"


@attrs.frozen(slots=True)
class SignedVersion:
    """Signed bytes for a nonce. A self-transfer carries no relay and only uses up the nonce."""

    hash: bytes
    signed_bytes: bytes = attrs.field(repr=False)
    max_fee: int
    max_tip: int
    is_self_transfer: bool


@attrs.define(slots=True)
class PendingTx:
    """Nonce with all versions ever signed for it. All versions are watched, and the latest is sent."""

    id: int
    nonce: int
    target: bytes
    gas_limit: int
    versions: list[SignedVersion]
    calldata: bytes = attrs.field(default=b"", repr=False)
    # Time of the next broadcast, by the event loop's clock.
    next_send_at: float = 0.0
    # Consecutive broadcasts that no node accepted.
    failed_broadcasts: int = 0
    # True after a node refused the fee, or after the transaction's turn passed.
    is_underpriced: bool = False
    # True after a node refused the transaction with a permanent error, or after its turn passed too often. A
    # self-transfer then replaces the transaction.
    is_unsendable: bool = False
    turns_passed: int = 0
    # True if certainly no node has the transaction: it was not broadcast yet, or nodes refused every broadcast. Always
    # False if another process signed it, because that process may have sent it without receiving the answer.
    is_unsent: bool = False
    # Code of the last refusal, as stored. None once a node may have the bytes.
    refusal_code: str | None = None
    # Expected gas of the carried ops, without margin. 0 for transactions that another process signed.
    expected_gas: int = 0
    # Start of the transaction's current turn. None until a node has accepted or refused the latest version.
    turn_started_at: float | None = None
    # Head at the start of the turn.
    turn_start_head: int = 0
    # True if a node has the latest version.
    is_accepted: bool = False
    # Time at which the nonce was first seen as used without a receipt.
    receipt_missing_since: float | None = None

    @property
    def latest(self) -> SignedVersion:
        return self.versions[-1]

    @property
    def fee(self) -> Fee:
        return Fee(self.latest.max_fee, self.latest.max_tip)

    @property
    def max_cost(self) -> int:
        """Highest amount that the transaction may cost."""
        return (BASE_GAS if self.latest.is_self_transfer else self.gas_limit) * self.latest.max_fee

    def add_version(self, version: SignedVersion) -> None:
        self.versions.append(version)
        self.next_send_at, self.failed_broadcasts, self.is_underpriced, self.is_unsendable = 0.0, 0, False, False
        self.turn_started_at, self.is_accepted = None, False

    def record_accepted(self, now: float) -> None:
        self.failed_broadcasts, self.next_send_at = 0, now + REBROADCAST_INTERVAL_S

    def record_verdict(self, now: float, head: int, *, accepted: bool) -> None:
        """Record that a node accepted or refused the latest version. The turn starts with the first such answer, and
        starts again with the first acceptance."""
        if self.turn_started_at is None or (accepted and not self.is_accepted):
            self.turn_started_at, self.turn_start_head = now, head
        self.is_accepted |= accepted

    def turn_has_passed(self, since: float, now: float, mined_within_s: float) -> bool:
        """Return True if the transaction's turn is over. The turn starts once a node has answered the latest version
        and the nonce is the account's next nonce. `since` is the time at which the nonce became the next. The second
        turn lasts twice as long as the first, and each later turn four times as long."""
        if self.turn_started_at is None:
            return False
        turn = mined_within_s if self.is_accepted else mined_within_s / REFUSED_TURN_DIVISOR
        return now >= max(self.turn_started_at, since) + turn * (1 << min(self.turns_passed, 2))

    def record_missing_receipt(self, now: float) -> bool:
        """Record that the nonce is used and no receipt exists. Return True if this was first recorded at least
        MAX_RECEIPT_LAG_S ago: the transaction then counts as lost. A node may count a nonce as used before the node has
        the receipt."""
        if self.receipt_missing_since is None:
            self.receipt_missing_since = now
        return now >= self.receipt_missing_since + MAX_RECEIPT_LAG_S

    def record_not_accepted(self, now: float) -> None:
        self.next_send_at = now + min(_FIRST_RETRY_PAUSE_S * 2**self.failed_broadcasts, _MAX_RETRY_PAUSE_S)
        self.failed_broadcasts = min(self.failed_broadcasts + 1, 10)


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

    def replace(self, tx: PendingTx, version: SignedVersion) -> None:
        tx.add_version(version)
        self._by_hash[version.hash] = tx

    def remove(self, tx: PendingTx) -> None:
        del self._by_id[tx.id]
        for version in tx.versions:
            del self._by_hash[version.hash]

    def find_by_id(self, tx_id: int) -> PendingTx | None:
        return self._by_id.get(tx_id)

    def find_by_hash(self, tx_hash: bytes) -> PendingTx | None:
        return self._by_hash.get(tx_hash)

    @property
    def max_cost(self) -> int:
        return sum(tx.max_cost for tx in self._by_id.values())
