"""The outbox: every relay is stored as a row before anything is signed. The transaction that inserts or ends a row
also sends the notification."""

import enum
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

from coordinatord.chain.relayer.budgets_sql import Spending
from coordinatord.storage.database.connections import Connection

MAX_PER_SUBJECT: Final = 8
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

    # Settle, fail and reclaim, which release a client's money.
    EXIT = 0
    # Includes cancels: nothing has been collected yet, and an owner can always cancel without the coordinator.
    OP = 1
    POST = 2
    BATCH_POST = 3


@attrs.frozen(slots=True)
class Promise:
    """Amount that the claim of a post will collect.

    `headroom` is the owner's balance left for this post and all others that the index does not show at `position`, or
    None if the balance is unknown.
    """

    amount: int
    headroom: int | None = None
    position: int = -1


@attrs.frozen(slots=True)
class NewRelay:
    """Request to relay an op.

    `dedupe` identifies the request and never contains signature bytes: an equal request joins the relay under way.
    `subject` is the key of its queue: a job id, or the op's signer padded to 32 bytes. `content` is data of the request
    outside of `dedupe`: a request with different content does not join. `held_for` are seconds without a queue timeout,
    for a request that builds on a relay under way. `signer` is the owner of a post or cancel, the wallet of a
    provider's op, or None for ops of the coordinator. Until the gas is booked, `gas_estimate` counts. `spending` is
    None if no budget may refuse the op.
    """

    kind: RelayKind
    subject: bytes
    dedupe: bytes
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    priority: int
    signer: bytes | None = None
    gas_estimate: int = 0
    spending: Spending | None = None
    promise: Promise | None = None
    content: bytes | None = None
    held_for: float = 0.0


@attrs.frozen(slots=True)
class Queued:
    """Relay in the outbox, inserted or `joined`. Identify it by its dedupe: after a failover that lost the row, the
    row number may name another relay."""

    id: int
    relay: NewRelay
    joined: bool


class NotQueued(enum.Enum):
    """Reason why a relay was not queued."""

    # Eight relays of the subject are under way, or one with different content.
    SUBJECT_BUSY = "subject_busy"
    QUEUE_FULL = "queue_full"
    # The signer's budget.
    OVER_BUDGET = "over_budget"
    # The budget of all newcomers together.
    OVER_NEWCOMERS_BUDGET = "over_newcomers_budget"
    # The owner's balance does not cover the post in addition to its open jobs and posts under way.
    INSOLVENT = "insolvent"


Submitted: TypeAlias = Queued | NotQueued


async def lock_outbox(connection: Connection) -> None:
    """Serialise with submitters until the transaction ends. Call this before ended relays become live again, which
    could collide with an equal live relay."""
    # The same key as in submit_relays.
    await connection.execute("select pg_advisory_xact_lock(x'52454c4159'::bigint)")


async def submit_all(connection: Connection, relays: Sequence[NewRelay], *, max_depth: int) -> list[Submitted]:
    """Insert or join each relay, in order, and return one outcome each.

    Make this the last statement of the transaction, because submitters wait for each other until the transaction ends.
    """
    rows = await connection.fetch(
        "select outcome, relay_id, same_as from submit_relays($1::new_relay[], $2, $3)",
        [_row(relay) for relay in relays],
        max_depth,
        MAX_PER_SUBJECT,
    )
    return [_submitted(relay, *row) for relay, row in zip(relays, rows, strict=True)]


def _row(relay: NewRelay) -> tuple[object, ...]:
    """Return the relay as a value of the database type `new_relay`."""
    limits, promise = relay.spending and relay.spending.limits, relay.promise
    return (
        relay.kind.value,
        relay.subject,
        relay.dedupe,
        relay.target,
        relay.calldata,
        int(relay.priority),
        relay.content,
        relay.held_for,
        relay.signer,
        relay.gas_estimate,
        *((limits.budget.value, limits.hour, limits.day) if limits else (None, None, None)),
        *((limits.newcomers if limits else None) or (None, None)),
        *((promise.amount, promise.headroom, promise.position) if promise else (None, None, None)),
    )


def _submitted(relay: NewRelay, outcome: str, relay_id: int | None, same_as: bytes | None) -> Submitted:
    if relay_id is None:
        return NotQueued(outcome)
    # The dedupe of the relay that the request joins.
    if same_as is not None:
        return Queued(relay_id, attrs.evolve(relay, dedupe=same_as), joined=True)
    return Queued(relay_id, relay, joined=False)


async def is_under_way(connection: Connection, subject: bytes) -> bool:
    """True when a relay of this subject is queued or signed."""
    live: bool = await connection.fetchval(
        "select exists (select from relays where subject = $1 and state in ('queued', 'signed'))", subject
    )
    return live


async def claims_under_way(
    connection: Connection, claims: Sequence[tuple[bytes, bytes]]
) -> dict[tuple[bytes, bytes], bool]:
    """Return, for each pair of job and wallet, True if a claim is queued or signed."""
    rows = await connection.fetch(
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
    """State of a relay. `tx_hash` is the mined version, otherwise the latest that carries the relay, or None before
    signing.

    `refusal` is the code with which nodes refused every broadcast of the transaction, or None when a node may have it.
    """

    dedupe: bytes
    state: str
    reason: str | None
    raw: bytes | None
    tx_hash: bytes | None
    block_number: int | None
    refusal: str | None

    @property
    def live(self) -> bool:
        return self.state in ("queued", "signed")


async def statuses(connection: Connection, relay_ids: Sequence[int]) -> dict[int, RelayStatus | None]:
    """Return the state of each relay, or None if the relay does not exist."""
    rows = await connection.fetch(
        "select r.id, r.dedupe, r.state::text, r.reason, r.raw,"
        " coalesce(t.mined_hash, (select v.hash from relay_tx_versions v where v.tx_id = t.id"
        " and not v.fills order by v.created_at desc limit 1)), t.block_number, t.refusal"
        " from relays r left join relay_txs t on t.id = r.tx_id where r.id = any($1::bigint[])",
        relay_ids,
    )
    found = {row["id"]: RelayStatus(*row[1:]) for row in rows}
    return {relay_id: found.get(relay_id) for relay_id in relay_ids}
