"""Shapes of jobs: rows of the job book, jobs as their owners follow them, and the answers to posting and cancelling."""

from typing import Annotated, Generic, Literal

from common.api.shapes import Address, Bytes32, Digits, N, Omittable, Shape, said
from common.api.states import ENDED_JOB, JOB_STATUS, EndedBecauseNumber, JobStateNumber, JobStatus
from common.api.words import WORDS
from common.api.worked_order import ORDER_SIGNATURE

_TX = WORDS["tx_hash"].example
ReclaimableAt = Annotated[
    Omittable[N],
    said(
        "of a claimed job, the last second in which it can be settled, in Unix seconds: after that anybody may reclaim"
        " it, and the payment goes back",
        "1800003630",
    ),
]
ReclaimableBlock = Annotated[
    Omittable[N],
    said(
        "an estimate: the block from which on a claimed job may be reclaimed, if blocks go on coming as they do;"
        " `reclaimable_at` decides",
        "1845",
    ),
]
EndedAt = Annotated[
    Omittable[N],
    said(
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
    signature: Annotated[str, said("the owner's Order signature", ORDER_SIGNATURE)]
    auth_sig: str
    amount: Annotated[Digits, said("cap + fee + gas_fee that the payment is signed for, in base units", "2014")]
    fee_bps: int
    gas_fee: Digits


class JobList(Shape, frozen=True):
    """A page of the job book."""

    jobs: Annotated[list[JobShape[Digits]], said("rows of the job book")]
    as_of_block: Digits
    pending: Annotated[
        Omittable[list[PendingJobShape]],
        said(
            "to a poll with `pending=1`: jobs whose post is under way, offered to this provider alone for one second,"
            " in which it may claim them"
        ),
    ] = None


class JobCounts(Shape, frozen=True):
    """How many jobs there are, by state."""

    open: Annotated[Digits, said("jobs that nobody has claimed yet", "12")]
    claimed: Annotated[Digits, said("jobs that a provider works on", "3")]
    settled: Annotated[Digits, said("jobs whose result is there, and paid for", "985")]
    cancelled: Annotated[Digits, said("jobs that ended without a result", "7")]
    as_of_block: Digits


class JobTransactionShape(Shape, Generic[N], frozen=True):
    """A transaction in the life of a job."""

    kind: Annotated[
        Literal["post", "claim", "settle", "fail", "cancel", "reclaim", "end"],
        said("call that it carried; `end` where only the hash of what ended the job is kept", "claim"),
    ]
    tx_hash: Bytes32
    block_number: Annotated[N | None, said("block that it was mined in, or null where it is not kept", "43")]


class JobTransactions(Shape, Generic[N], frozen=True):
    """Transactions of a job that the coordinator knows of, the oldest first."""

    transactions: Annotated[tuple[JobTransactionShape[N], ...], said("those transactions; empty where none is known")]


class CostPartsShape(Shape, Generic[N], frozen=True):
    """How the cost of a settled job is divided."""

    provider: Annotated[N, said("paid to the provider, in base units", "12")]
    fee: Annotated[N, said("the protocol's fee on the provider's part, in base units", "0")]
    gas_fee: Annotated[N, said("flat relay charge, in base units", "2000")]


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
        said(
            "cap + fee + gas_fee as it was posted, in base units of the payment token: collected at the claim", "2014"
        ),
    ] = None
    reclaimable_at: ReclaimableAt[N] = None
    ended_at: EndedAt[N] = None
    reclaimable_block: ReclaimableBlock[N] = None
    cost: Annotated[
        Omittable[N],
        said("what the client paid in all for a settled job: provider + fee + gas_fee, in base units", "2012"),
    ] = None
    cost_parts: Annotated[Omittable[CostPartsShape[N]], said("parts of that cost")] = None


class ClientJobFields(Shape, Generic[N], frozen=True):
    id: Annotated[Bytes32, said("id of the job: keccak256(owner ‖ c)", WORDS["job_id"].example)]
    model: Annotated[str | None, said("name of the model; null if the catalogue has none", "demo/text-small")]
    status: Annotated[JobStatus, said(JOB_STATUS, "completed")]
    in_progress_at: Annotated[N | None, said("time of the claim, in Unix seconds, or null", "1800000030")]
    result_cid: str | None
    svc: ClientJobDetails[N]

    @property
    def ended(self) -> bool:
        return self.status in ENDED_JOB


class ClientJob(ClientJobFields[Digits], frozen=True, tag_field="object", tag="job"):
    """A job as its client follows it."""

    as_of_block: Digits


Jobs = Annotated[N, said("how many jobs", "1")]
Completed = Annotated[N, said("how many of them are settled", "1")]


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
    """A job that was posted."""

    job_id: Bytes32
    task_cid: str
    tx_hash: Bytes32


class Cancelled(Shape, frozen=True):
    """A job that is cancelled, or had ended before."""

    job_id: Bytes32
    tx_hash: Annotated[Bytes32, said("transaction that cancelled it, or that had ended it before", _TX)]
