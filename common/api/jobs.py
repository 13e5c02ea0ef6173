"""Shapes of jobs: rows of the job book (the public list of jobs), a client's view of its job, posts and cancels."""

from typing import Annotated, Generic, Literal

from common.api.member_texts import MEMBER_TEXTS
from common.api.shapes import Address, Bytes32, Digits, N, Omittable, Shape, described
from common.api.states import ENDED_JOB_STATUSES, JOB_STATUS_DESCRIPTION, EndedBecauseNumber, JobStateNumber, JobStatus
from common.api.worked_order import ORDER_SIGNATURE

_EXAMPLE_TX_HASH = MEMBER_TEXTS["tx_hash"].example
ReclaimableAt = Annotated[
    Omittable[N],
    described(
        "of a claimed job, the last second in which it can be settled, in Unix seconds; afterwards any account may"
        " reclaim the job, which refunds the owner",
        "1800003630",
    ),
]
ReclaimableBlock = Annotated[
    Omittable[N],
    described(
        "estimate of the first block in which a claimed job may be reclaimed, from the current block time;"
        " `reclaimable_at` decides",
        "1845",
    ),
]
EndedAt = Annotated[
    Omittable[N],
    described(
        "time of the block that ended the job, or `expires_at` of an expired job, in Unix seconds; absent while the job"
        " runs, and for old jobs whose end was not recorded",
        "1800000061",
    ),
]


class JobShape(Shape, Generic[N], frozen=True):
    """A row of the job book."""

    job_id: Bytes32
    owner: Address
    c: Bytes32
    model_id: N
    sla_secs: N
    designated: N
    rate_in: N
    rate_out: N
    units_in: N
    units_out: N
    expires_at: N
    provider_id: N
    claimed_at: N
    completion_tok: N
    posted_block: N
    state: JobStateNumber
    ended_because: EndedBecauseNumber
    task_cid: str
    result_cid: str | None
    reclaimable_at: ReclaimableAt[N] = None
    ended_at: EndedAt[N] = None


class JobAsOf(JobShape[Digits], frozen=True, kw_only=True):
    """A row of the job book, with the block at which it was read."""

    as_of_block: Digits


class PendingJobShape(Shape, frozen=True):
    """Job without a mined post, with the data that a provider needs to check the order itself."""

    job_id: Bytes32
    owner: Address
    c: Bytes32
    model_id: Digits
    sla_secs: Digits
    designated: Digits
    rate_in: Digits
    rate_out: Digits
    units_in: Digits
    units_out: Digits
    expires_at: Digits
    task_cid: str
    signature: Annotated[str, described("the owner's Order signature", ORDER_SIGNATURE)]
    auth_sig: str
    amount: Annotated[Digits, described("signed payment: cap + fee + gas_fee, in base units", "2014")]
    fee_bps: int
    gas_fee: Digits


class JobTraceShape(Shape, frozen=True):
    """Trace context of a job's order."""

    job_id: Bytes32
    traceparent: Annotated[
        str,
        described(
            "W3C trace context of the order, in version 00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        ),
    ]


class JobList(Shape, frozen=True):
    """A page of the job book."""

    jobs: Annotated[list[JobShape[Digits]], described("rows of the job book")]
    as_of_block: Digits
    pending: Annotated[
        Omittable[list[PendingJobShape]],
        described(
            "in the response to a poll with `pending=1`: jobs whose post is not mined yet; for one second, only this"
            " provider is offered these jobs and may claim them"
        ),
    ] = None
    traces: Annotated[
        Omittable[list[JobTraceShape]],
        described(
            "in the response to a poll: trace contexts of these jobs, if the client sent one and the coordinator"
            " traces. Unverified, and without effect on the job"
        ),
    ] = None


class JobCounts(Shape, frozen=True):
    """Number of jobs by state."""

    open: Annotated[Digits, described("jobs that no provider has claimed yet", "12")]
    claimed: Annotated[Digits, described("jobs that a provider works on", "3")]
    settled: Annotated[Digits, described("jobs with a delivered and paid result", "985")]
    cancelled: Annotated[Digits, described("jobs that ended without a result", "7")]
    as_of_block: Digits


class JobTransactionShape(Shape, Generic[N], frozen=True):
    """A transaction in the life of a job."""

    kind: Annotated[
        Literal["post", "claim", "settle", "fail", "cancel", "reclaim", "end"],
        described("call in the transaction; `end` if only the hash of the call that ended the job is stored", "claim"),
    ]
    tx_hash: Bytes32
    block_number: Annotated[N | None, described("block that mined the transaction, or null if it is not stored", "43")]


class JobTransactions(Shape, Generic[N], frozen=True):
    """Transactions of a job that the coordinator knows, oldest first."""

    transactions: Annotated[
        tuple[JobTransactionShape[N], ...], described("transactions of the job, oldest first; empty if none is known")
    ]


class CostPartsShape(Shape, Generic[N], frozen=True):
    """Parts of a settled job's cost."""

    provider: Annotated[N, described("paid to the provider, in base units", "12")]
    fee: Annotated[N, described("the protocol's fee on the provider's part, in base units", "0")]
    gas_fee: Annotated[N, described("flat relay charge, in base units", "2000")]


class ClientJobDetails(Shape, Generic[N], frozen=True):
    """The order and its outcome on the chain."""

    job_id: Bytes32
    owner: Address
    model_id: N
    sla_secs: N
    rate_in: N
    rate_out: N
    units_in: N
    units_out: N
    designated: N
    provider_id: N
    expires_at: N
    task_cid: str
    completion_tok: N
    state: JobStateNumber
    ended_because: EndedBecauseNumber
    amount: Annotated[
        Omittable[N],
        described(
            "cap + fee + gas_fee at the post, in base units of the payment token; collected at the claim", "2014"
        ),
    ] = None
    reclaimable_at: ReclaimableAt[N] = None
    ended_at: EndedAt[N] = None
    reclaimable_block: ReclaimableBlock[N] = None
    cost: Annotated[
        Omittable[N],
        described("the client's total payment for a settled job: provider + fee + gas_fee, in base units", "2012"),
    ] = None
    cost_parts: Annotated[Omittable[CostPartsShape[N]], described("parts of `cost`")] = None


class ClientJobFields(Shape, Generic[N], frozen=True):
    id: Annotated[Bytes32, described("id of the job: keccak256(owner ‖ c)", MEMBER_TEXTS["job_id"].example)]
    model: Annotated[str | None, described("name of the model; null if the catalogue has none", "demo/text-small")]
    status: Annotated[JobStatus, described(JOB_STATUS_DESCRIPTION, "completed")]
    in_progress_at: Annotated[N | None, described("time of the claim, in Unix seconds, or null", "1800000030")]
    result_cid: str | None
    svc: ClientJobDetails[N]

    @property
    def ended(self) -> bool:
        return self.status in ENDED_JOB_STATUSES


class ClientJob(ClientJobFields[Digits], frozen=True, tag_field="object", tag="job"):
    """A job as its client sees it, read at block `as_of_block`."""

    as_of_block: Digits


JobCount = Annotated[N, described("number of jobs", "1")]
CompletedCount = Annotated[N, described("number of settled jobs", "1")]


class ModelSummary(Shape, Generic[N], frozen=True):
    """Totals of an owner's jobs for one model."""

    jobs: JobCount[N]
    completed: CompletedCount[N]
    priced: N
    escrowed: N
    model_id: N


class SummaryFields(Shape, Generic[N], frozen=True):
    jobs: JobCount[N]
    completed: CompletedCount[N]
    priced: N
    escrowed: N
    by_model: tuple[ModelSummary[N], ...]


class Summary(SummaryFields[Digits], frozen=True):
    """Totals of an owner's jobs."""

    as_of_block: Digits


class PostedShape(Shape, frozen=True):
    """Response to a posted order."""

    job_id: Bytes32
    task_cid: str
    tx_hash: Bytes32


class Cancelled(Shape, frozen=True):
    """Response to a cancel. The job may have ended earlier."""

    job_id: Bytes32
    tx_hash: Annotated[Bytes32, described("transaction that ended the job", _EXAMPLE_TX_HASH)]
