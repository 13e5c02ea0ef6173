"""Shapes of jobs: rows of the job book, jobs as their owners follow them, and the answers to posting and cancelling."""

from typing import Annotated, Generic, Literal

from common.api.shapes import Address, Bytes32, Digits, N, Omittable, Shape, described
from common.api.states import ENDED_JOB, JOB_STATUS, EndedBecauseNumber, JobStateNumber, JobStatus
from common.api.words import WORDS
from common.api.worked_order import ORDER_SIGNATURE

_TX = WORDS["tx_hash"].example
ReclaimableAt = Annotated[
    Omittable[N],
    described(
        "of a claimed job, the last second in which it can be settled, in Unix seconds: after that anybody may reclaim"
        " it, and the payment goes back",
        "1800003630",
    ),
]
ReclaimableBlock = Annotated[
    Omittable[N],
    described(
        "an estimate: the block from which on a claimed job may be reclaimed, if blocks go on coming as they do;"
        " `reclaimable_at` decides",
        "1845",
    ),
]
EndedAt = Annotated[
    Omittable[N],
    described(
        "time of the block that ended the job, or `expires_at` of one that expired, in Unix seconds; absent until then,"
        " and of jobs that ended before the coordinator kept it",
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
    """A row of the job book, and when it was read."""

    as_of_block: Digits


class PendingJobShape(Shape, frozen=True):
    """Job with a pending post, and the data for a provider to check it without the chain."""

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
    amount: Annotated[Digits, described("cap + fee + gas_fee that the payment is signed for, in base units", "2014")]
    fee_bps: int
    gas_fee: Digits


class JobList(Shape, frozen=True):
    """A page of the job book."""

    jobs: Annotated[list[JobShape[Digits]], described("rows of the job book")]
    as_of_block: Digits
    pending: Annotated[
        Omittable[list[PendingJobShape]],
        described(
            "to a poll with `pending=1`: jobs whose post is under way, offered to this provider alone for one second,"
            " in which it may claim them"
        ),
    ] = None


class JobCounts(Shape, frozen=True):
    """Numbers of jobs by state."""

    open: Annotated[Digits, described("jobs that no provider has claimed yet", "12")]
    claimed: Annotated[Digits, described("jobs that a provider works on", "3")]
    settled: Annotated[Digits, described("jobs with a delivered and paid result", "985")]
    cancelled: Annotated[Digits, described("jobs that ended without a result", "7")]
    as_of_block: Digits


class JobTransactionShape(Shape, Generic[N], frozen=True):
    """A transaction in the life of a job."""

    kind: Annotated[
        Literal["post", "claim", "settle", "fail", "cancel", "reclaim", "end"],
        described("call that it carried; `end` where only the hash of what ended the job is kept", "claim"),
    ]
    tx_hash: Bytes32
    block_number: Annotated[N | None, described("block that it was mined in, or null where it is not kept", "43")]


class JobTransactions(Shape, Generic[N], frozen=True):
    """Transactions of a job that the coordinator knows of, the oldest first."""

    transactions: Annotated[
        tuple[JobTransactionShape[N], ...], described("those transactions; empty where none is known")
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
            "cap + fee + gas_fee as it was posted, in base units of the payment token: collected at the claim", "2014"
        ),
    ] = None
    reclaimable_at: ReclaimableAt[N] = None
    ended_at: EndedAt[N] = None
    reclaimable_block: ReclaimableBlock[N] = None
    cost: Annotated[
        Omittable[N],
        described("the client's total payment for a settled job: provider + fee + gas_fee, in base units", "2012"),
    ] = None
    cost_parts: Annotated[Omittable[CostPartsShape[N]], described("parts of that cost")] = None


class ClientJobFields(Shape, Generic[N], frozen=True):
    id: Annotated[Bytes32, described("id of the job: keccak256(owner ‖ c)", WORDS["job_id"].example)]
    model: Annotated[str | None, described("name of the model; null if the catalogue has none", "demo/text-small")]
    status: Annotated[JobStatus, described(JOB_STATUS, "completed")]
    in_progress_at: Annotated[N | None, described("time of the claim, in Unix seconds, or null", "1800000030")]
    result_cid: str | None
    svc: ClientJobDetails[N]

    @property
    def ended(self) -> bool:
        return self.status in ENDED_JOB


class ClientJob(ClientJobFields[Digits], frozen=True, tag_field="object", tag="job"):
    """A job as its client sees it, read at block `as_of_block`."""

    as_of_block: Digits


Jobs = Annotated[N, described("how many jobs", "1")]
Completed = Annotated[N, described("how many of them are settled", "1")]


class ModelSummary(Shape, Generic[N], frozen=True):
    """An owner's jobs of one model, summed up."""

    jobs: Jobs[N]
    completed: Completed[N]
    priced: N
    escrowed: N
    model_id: N


class SummaryFields(Shape, Generic[N], frozen=True):
    jobs: Jobs[N]
    completed: Completed[N]
    priced: N
    escrowed: N
    by_model: tuple[ModelSummary[N], ...]


class Summary(SummaryFields[Digits], frozen=True):
    """An owner's jobs, summed up."""

    as_of_block: Digits


class PostedShape(Shape, frozen=True):
    """Posted job."""

    job_id: Bytes32
    task_cid: str
    tx_hash: Bytes32


class Cancelled(Shape, frozen=True):
    """Job that was cancelled now or had ended before."""

    job_id: Bytes32
    tx_hash: Annotated[Bytes32, described("transaction that cancelled it, or that had ended it before", _TX)]
