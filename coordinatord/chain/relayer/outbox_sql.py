"""The outbox: a relay is a row before anything is signed.

Who inserts, and who ends a row, does so in a transaction that also notifies: waiters hear of nothing that was rolled
back.
"""

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
    """Amount that the claim of a post will collect. `headroom`: what its owner's balance has left for it and for all of
    the owner's posts that the index does not show at `position`; None where the balance is not known."""

    amount: int
    headroom: int | None = None
    position: int = -1


@attrs.frozen(slots=True)
class NewRelay:
    """`dedupe` names the request, never by signature bytes: the same request again joins the relay under way.

    `subject` is what requests queue on: a job id, or an op's signer padded to 32 bytes. `content` is what the request
    names beyond its dedupe: with other content it does not join the live one, and waits until that has ended.
    `held_for`: seconds for which no timeout of the queue drops it, because it builds on a relay that is under way.
    `signer` is who answers for the op: the owner of a post or cancel, the wallet of a provider's op, None for the
    coordinator's own. Its gas counts by `gas_estimate` until it is booked; `spending` is what it is held against, and
    None where no budget may refuse it.
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


@attrs.frozen(slots=True)
class SubjectBusy:
    """Eight relays of this subject are under way."""


@attrs.frozen(slots=True)
class QueueFull:
    """As many relays wait to be signed as may."""


@attrs.frozen(slots=True)
class OverBudget:
    """Its gas is more than its signer, or all newcomers together, may cause now."""


@attrs.frozen(slots=True)
class Insolvent:
    """The owner's balance does not cover the post beside its open jobs and its posts under way."""


Submitted: TypeAlias = Queued | SubjectBusy | QueueFull | OverBudget | Insolvent
_REFUSED: Final[dict[str, Submitted]] = {
    "subject_busy": SubjectBusy(),
    "queue_full": QueueFull(),
    "over_budget": OverBudget(),
    "over_all_newcomers": OverBudget(),
    "insolvent": Insolvent(),
}


async def lock_outbox(connection: Connection) -> None:
    """Take turns with submitters until the transaction ends. Call it before ended relays become live again, which could
    collide with an equal live relay."""
    await connection.execute("select pg_advisory_xact_lock(x'52454c4159'::bigint)")  # as in submit_relays


async def submit(connection: Connection, relay: NewRelay, *, max_depth: int) -> Submitted:
    """Insert or join, within the caller's transaction; make it the transaction's last statement, because submitters
    wait for each other until it ends."""
    return (await submit_all(connection, [relay], max_depth=max_depth))[0]


async def submit_all(connection: Connection, relays: Sequence[NewRelay], *, max_depth: int) -> list[Submitted]:
    """The same for several, in their order: one outcome each."""
    limits = [None if relay.spending is None else relay.spending.limits for relay in relays]
    newcomers = [None if limit is None else limit.newcomers for limit in limits]
    promises = [relay.promise for relay in relays]
    rows = await connection.fetch(
        "select outcome, relay_id from submit_relays($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,"
        " $16, $17, $18, $19)",
        [relay.kind.value for relay in relays],
        [relay.subject for relay in relays],
        [relay.dedupe for relay in relays],
        [relay.target for relay in relays],
        [relay.calldata for relay in relays],
        [int(relay.priority) for relay in relays],
        [relay.signer for relay in relays],
        [relay.gas_estimate for relay in relays],
        [newcomer is not None for newcomer in newcomers],
        [None if limit is None else limit.budget.value for limit in limits],
        [None if limit is None else limit.hour for limit in limits],
        [None if limit is None else limit.day for limit in limits],
        [None if newcomer is None else newcomer[0] for newcomer in newcomers],
        [None if newcomer is None else newcomer[1] for newcomer in newcomers],
        [None if promise is None else promise.amount for promise in promises],
        [None if promise is None else promise.headroom for promise in promises],
        [None if promise is None else promise.position for promise in promises],
        max_depth,
        MAX_PER_SUBJECT,
    )
    outcomes = [_submitted(relay, row["outcome"], row["relay_id"]) for relay, row in zip(relays, rows, strict=True)]
    await _hold(connection, [outcome for outcome in outcomes if isinstance(outcome, Queued) and outcome.relay.held_for])
    others = await _with_other_content(connection, relays, outcomes)
    cancelled = await _cancelled_before(connection, relays, outcomes)
    return [
        SubjectBusy() if place in others else cancelled.get(place, outcome) for place, outcome in enumerate(outcomes)
    ]


async def _cancelled_before(
    connection: Connection, relays: Sequence[NewRelay], outcomes: Sequence[Submitted]
) -> dict[int, Queued]:
    """By the place of a cancel that was just inserted, the relay that cancelled its job before: a moment ago, when the
    request had not yet come here, and the job still looked open. It joins that one, and nothing is relayed."""
    inserted = [
        (place, outcome.id)
        for place, (relay, outcome) in enumerate(zip(relays, outcomes, strict=True))
        if relay.kind is RelayKind.CANCEL and isinstance(outcome, Queued) and not outcome.joined
    ]
    if not inserted:
        return {}
    rows = await connection.fetch(
        "with needless as (select distinct on (n.place) n.place, n.id, o.id as before, o.dedupe"
        " from unnest($1::integer[], $2::bigint[]) as n(place, id) join relays r on r.id = n.id"
        " join relays o on o.subject = r.subject and o.kind = 'cancel' and o.state = 'mined' order by n.place, o.id),"
        " gone as (delete from relays r using needless n where r.id = n.id)"
        " select place, before, dedupe from needless",
        [place for place, _ in inserted],
        [relay_id for _, relay_id in inserted],
    )
    return {
        row["place"]: Queued(row["before"], attrs.evolve(relays[row["place"]], dedupe=row["dedupe"]), joined=True)
        for row in rows
    }


async def _with_other_content(
    connection: Connection, relays: Sequence[NewRelay], outcomes: Sequence[Submitted]
) -> set[int]:
    """The places of requests that must not join the live relay of their dedupe, since that one names other content."""
    named = [
        (place, outcome.id, relay.content, outcome.joined)
        for place, (relay, outcome) in enumerate(zip(relays, outcomes, strict=True))
        if relay.content is not None and isinstance(outcome, Queued)
    ]
    if not named:
        return set()
    await connection.execute(
        "update relays set content = n.content from unnest($1::bigint[], $2::bytea[]) as n(id, content)"
        " where relays.id = n.id",
        [relay_id for _, relay_id, _, joined in named if not joined],
        [content for _, _, content, joined in named if not joined],
    )
    rows = await connection.fetch(
        "select n.place from unnest($1::integer[], $2::bigint[], $3::bytea[]) as n(place, id, content)"
        " join relays r on r.id = n.id where r.content is distinct from n.content",
        [place for place, _, _, _ in named],
        [relay_id for _, relay_id, _, _ in named],
        [content for _, _, content, _ in named],
    )
    return {row["place"] for row in rows}


async def _hold(connection: Connection, queued: Sequence[Queued]) -> None:
    """Keep relays from being dropped for their time in the queue."""
    if queued:
        await connection.execute(
            "update relays set held_until = clock_timestamp() + h.seconds * interval '1 second'"
            " from unnest($1::bigint[], $2::float8[]) as h(id, seconds) where relays.id = h.id",
            [one.id for one in queued],
            [one.relay.held_for for one in queued],
        )


def _submitted(relay: NewRelay, outcome: str, relay_id: int | None) -> Submitted:
    if relay_id is not None:
        return Queued(relay_id, relay, outcome == "joined")
    return _REFUSED[outcome]


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
