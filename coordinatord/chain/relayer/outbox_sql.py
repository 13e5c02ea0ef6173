"""The outbox: every relay is stored as a row before anything is signed. The transaction that inserts or ends a row
also sends the notification."""

import enum
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

from coordinatord.chain.relayer.budgets_sql import Spending
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection

MAX_RELAYS_PER_SUBJECT: Final = 8
MAX_REQUEUES: Final = 3
# Internal reason. Callers get `relay_queue_timeout`.
FEES_ABOVE_CEILING: Final = "fees_above_ceiling"


class RelayKind(enum.StrEnum):
    POST = "post"
    CLAIM = "claim"
    SETTLE = "settle"
    FAIL = "fail"
    CANCEL = "cancel"
    RECLAIM = "reclaim"
    SET_IDENTITY = "set_identity"
    REQUEST_CAPACITY = "request_capacity"
    PUBLISH = "publish"


class Priority(enum.IntEnum):
    """Priority in the queue. Lower values come first."""

    # Settle, fail and reclaim, which release the payment that a claim locked.
    EXIT = 0
    # Includes cancels. They are less urgent than exits, because no payment has been collected yet and an owner can
    # always cancel without the coordinator.
    OP = 1
    POST = 2
    BATCH_POST = 3


@attrs.frozen(slots=True)
class PaymentPromise:
    """Amount that the claim of a post will collect.

    `headroom` is the owner's balance left for this post and all others that the index does not show at `block_number`,
    or None if the balance is unknown.
    """

    amount: int
    headroom: int | None = None
    block_number: int = -1


@attrs.frozen(slots=True, eq=False)
class NewRelay:
    """Request to relay an op. Requests are compared by identity, because each submission needs its own outcome.

    `subject` is the key of the relay's queue: a job id, or the op's signer padded to 32 bytes. `dedupe` identifies the
    request and never contains signature bytes. A request with the same `dedupe` joins the relay under way.
    """

    kind: RelayKind
    subject: bytes
    dedupe: bytes
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    priority: int
    # Owner of a post or cancel, wallet of a provider's op, or None for ops of the coordinator.
    signer: bytes | None = None
    # Counts against the budget until the gas is booked.
    gas_estimate: int = 0
    # None if no budget may refuse the op.
    spending: Spending | None = None
    promise: PaymentPromise | None = None
    # Data that `dedupe` does not cover. A request with other content does not join.
    content: bytes | None = None
    # Seconds during which the queue timeout does not apply, for a request that builds on a relay under way.
    held_for_s: float = 0.0


@attrs.frozen(slots=True)
class QueuedRelay:
    """Relay in the outbox. `is_duplicate` is True if an equal, earlier request already stored it. Identify the relay by
    `relay.dedupe`. After a failover that lost the row, `id` may name another relay."""

    id: int
    relay: NewRelay
    is_duplicate: bool


class NotQueued(enum.Enum):
    """Reason why a relay was not queued."""

    # The subject has MAX_RELAYS_PER_SUBJECT relays under way, or a request with the same dedupe key and other content.
    SUBJECT_BUSY = "subject_busy"
    QUEUE_FULL = "queue_full"
    # The signer's budget has no room.
    OVER_BUDGET = "over_budget"
    # The budget of all newcomers together has no room.
    OVER_NEWCOMERS_BUDGET = "over_newcomers_budget"
    # The owner's balance does not cover the post in addition to its open jobs and posts under way.
    INSOLVENT = "insolvent"


QueueOutcome: TypeAlias = QueuedRelay | NotQueued


async def lock_outbox(connection: Connection) -> None:
    """Lock out submitters until the transaction ends. Call this before ended relays become queued or signed again,
    because a submitter could insert an equal relay at the same time."""
    # The same key as in submit_relays.
    await connection.execute("select pg_advisory_xact_lock(x'52454c4159'::bigint)")


async def submit_all(connection: Connection, relays: Sequence[NewRelay], *, max_depth: int) -> list[QueueOutcome]:
    """Insert each relay or join it to an equal relay, in order. Return one outcome for each.

    Make this the last statement of the transaction, because submitters wait for each other until the transaction ends.
    """
    rows = await connection.fetch(
        "select outcome, relay_id, same_as from submit_relays($1::new_relay[], $2, $3)",
        [_relay_to_row(relay) for relay in relays],
        max_depth,
        MAX_RELAYS_PER_SUBJECT,
    )
    return [_queue_outcome_from_row(relay, *row) for relay, row in zip(relays, rows, strict=True)]


def _relay_to_row(relay: NewRelay) -> tuple[object, ...]:
    """Return the relay as a value of the database type `new_relay`."""
    limits, promise = relay.spending and relay.spending.gas_limits, relay.promise
    return (
        relay.kind.value,
        relay.subject,
        relay.dedupe,
        relay.target,
        relay.calldata,
        int(relay.priority),
        relay.content,
        relay.held_for_s,
        relay.signer,
        relay.gas_estimate,
        *((limits.budget.value, limits.hourly_gas, limits.daily_gas) if limits else (None, None, None)),
        *((limits.newcomers_gas if limits else None) or (None, None)),
        *((promise.amount, promise.headroom, promise.block_number) if promise else (None, None, None)),
    )


def _queue_outcome_from_row(relay: NewRelay, outcome: str, relay_id: int | None, same_as: bytes | None) -> QueueOutcome:
    if relay_id is None:
        return NotQueued(outcome)
    # A cancel may join another cancel of its job.
    if same_as not in (None, relay.dedupe):
        relay = attrs.evolve(relay, dedupe=same_as)
    return QueuedRelay(relay_id, relay, is_duplicate=same_as is not None)


@attrs.frozen(slots=True)
class StoredRelay:
    """Relay as the relayer reads it from the outbox. `tx_id` is the transaction that carries the relay. `call_index` is
    its place in `relay(bytes[])`, or None if the relay is the whole transaction."""

    id: int
    kind: RelayKind = attrs.field(converter=RelayKind)
    subject: bytes
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    state: str = "queued"
    requeue_count: int = 0
    tx_id: int | None = None
    call_index: int | None = None


# Columns of a StoredRelay, in its order.
STORED_COLUMNS: Final = "id, kind, subject, target, calldata, state::text, requeued, tx_id, call_index"


async def is_under_way(connection: Connection, subject: bytes, *, post_of: bytes | None = None) -> bool:
    """Return True if a relay of this subject is queued or signed. With `post_of`, count only a post of this owner."""
    live: bool = await connection.fetchval(
        "select exists (select from relays where subject = $1 and state in ('queued', 'signed')"
        " and ($2::bytea is null or (kind = 'post' and signer = $2)))",
        subject,
        post_of,
    )
    return live


async def read_claims_under_way(
    reader: PreparedConnection, claims: Sequence[tuple[bytes, bytes]]
) -> dict[tuple[bytes, bytes], bool]:
    """Return, for each pair of job and wallet, True if a claim is queued or signed."""
    rows = await reader.fetch(
        "select exists (select from relays r where r.subject = c.job and r.state in ('queued', 'signed')"
        " and r.kind = $3 and r.signer = c.wallet) as live"
        " from unnest($1::bytea[], $2::bytea[]) with ordinality as c(job, wallet, place) order by c.place",
        [job for job, _ in claims],
        [wallet for _, wallet in claims],
        RelayKind.CLAIM,
    )
    return {claim: row["live"] for claim, row in zip(claims, rows, strict=True)}


@attrs.frozen(slots=True)
class RelayStatus:
    """State of a relay. `tx_hash` names the mined version, or otherwise the latest version that carries the relay.
    `refusal` is the code with which nodes refused every broadcast of the transaction, or None when a node may have the
    transaction."""

    dedupe: bytes
    state: str
    reason: str | None
    raw: bytes | None
    tx_hash: bytes | None
    block_number: int | None
    refusal: str | None

    @property
    def is_live(self) -> bool:
        return self.state in ("queued", "signed")


async def read_statuses(
    reader: "PreparedConnection | Connection", relay_ids: Sequence[int]
) -> dict[int, RelayStatus | None]:
    """Return the state of each relay, or None if the relay does not exist."""
    rows = await reader.fetch(
        "select r.id, r.dedupe, r.state::text, r.reason, r.raw,"
        " coalesce(t.mined_hash, (select v.hash from relay_tx_versions v where v.tx_id = t.id"
        " and not v.fills order by v.created_at desc limit 1)), t.block_number, t.refusal"
        " from relays r left join relay_txs t on t.id = r.tx_id where r.id = any($1::bigint[])",
        relay_ids,
    )
    found = {row["id"]: RelayStatus(*row[1:]) for row in rows}
    return {relay_id: found.get(relay_id) for relay_id in relay_ids}
