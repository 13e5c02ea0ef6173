"""The outbox: a relay is a row before anything is signed. The transaction that inserts or ends a row also notifies."""

import enum
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

from coordinatord.chain.relayer.budgets_sql import Spending
from coordinatord.storage.database.connections import Connection

MAX_PER_SUBJECT: Final = 8
MAX_REQUEUES: Final = 3
FEES_ABOVE_CEILING: Final = "fees_above_ceiling"  # a reason of ours: callers hear `relay_queue_timeout`


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
    """Lower goes first."""

    EXIT = 0  # settle, fail, reclaim: somebody's money waits for it
    OP = 1  # also a cancel: nothing was collected yet, and its owner can always act alone
    POST = 2
    BATCH_POST = 3


@attrs.frozen(slots=True)
class Promise:
    """Amount that the claim of a post will collect. `headroom`: what the owner's balance has left for this post and all
    others that the index does not show at `position`; None where the balance is not known."""

    amount: int
    headroom: int | None = None
    position: int = -1


@attrs.frozen(slots=True)
class NewRelay:
    """A request to relay an op.

    `dedupe` identifies the request, never by signature bytes: the same request again joins the relay under way.
    `subject` is the key of its queue: a job id, or an op's signer padded to 32 bytes. `content` is what the request
    names beyond its dedupe: with other content it does not join. `held_for`: seconds before which no queue timeout
    drops it, because it builds on a relay under way. `signer`: the owner of a post or cancel, the wallet of a
    provider's op, None for the coordinator's own. Its gas counts by `gas_estimate` until it is booked. `spending` is
    None where no budget may refuse the op.
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
    """A relay in the outbox: inserted, or `joined` because the same request is under way. Its dedupe identifies it: a
    row number may name another relay after a failover that lost the row."""

    id: int
    relay: NewRelay
    joined: bool


class NotQueued(enum.Enum):
    """Why a relay was not queued."""

    SUBJECT_BUSY = "subject_busy"  # eight relays of the subject are under way, or one with other content
    QUEUE_FULL = "queue_full"
    OVER_BUDGET = "over_budget"  # of its signer
    OVER_NEWCOMERS_BUDGET = "over_newcomers_budget"  # of all newcomers together
    INSOLVENT = "insolvent"  # the owner's balance does not cover the post beside its open jobs and posts under way


Submitted: TypeAlias = Queued | NotQueued


async def lock_outbox(connection: Connection) -> None:
    """Take turns with submitters until the transaction ends. Call it before ended relays become live again, which could
    collide with an equal live relay."""
    await connection.execute("select pg_advisory_xact_lock(x'52454c4159'::bigint)")  # as in submit_relays


async def submit_all(connection: Connection, relays: Sequence[NewRelay], *, max_depth: int) -> list[Submitted]:
    """Insert or join each, in their order, and return one outcome each. Make it the last statement of the transaction:
    submitters wait for each other until the transaction ends."""
    rows = await connection.fetch(
        "select outcome, relay_id, same_as from submit_relays($1::new_relay[], $2, $3)",
        [_row(relay) for relay in relays],
        max_depth,
        MAX_PER_SUBJECT,
    )
    return [_submitted(relay, *row) for relay, row in zip(relays, rows, strict=True)]


def _row(relay: NewRelay) -> tuple[object, ...]:
    """Return the relay as the database's type `new_relay`."""
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
    if same_as is not None:  # the dedupe of the relay that it joins
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
    """Of each job and wallet, true when a claim of the job by the wallet is queued or signed."""
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
    """State of a relay. `tx_hash`: the mined version, else the latest that carries it; None before signing.
    `refusal`: the code by which nodes refused every sending of that transaction; None when a node may have it."""

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
    """Return the state of each relay, None for one that does not exist."""
    rows = await connection.fetch(
        "select r.id, r.dedupe, r.state::text, r.reason, r.raw,"
        " coalesce(t.mined_hash, (select v.hash from relay_tx_versions v where v.tx_id = t.id"
        " and not v.fills order by v.created_at desc limit 1)), t.block_number, t.refusal"
        " from relays r left join relay_txs t on t.id = r.tx_id where r.id = any($1::bigint[])",
        relay_ids,
    )
    found = {row["id"]: RelayStatus(*row[1:]) for row in rows}
    return {relay_id: found.get(relay_id) for relay_id in relay_ids}
