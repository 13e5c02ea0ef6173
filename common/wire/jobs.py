"""Shapes of jobs: rows of the job book, jobs as their owners follow them, and the answers to posting and cancelling."""

from typing import Generic

from common.wire.shapes import Address, Bytes32, Digits, N, Shape
from common.wire.states import ENDED_JOB, JobStatus


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
    state: int
    ended_because: int
    task_cid: str
    result_cid: str | None


class JobAsOf(JobShape[Digits], frozen=True):
    as_of_block: Digits


class JobList(Shape, frozen=True):
    jobs: list[JobShape[Digits]]
    as_of_block: Digits


class ClientJobDetails(Shape, Generic[N], frozen=True):
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
    state: int
    ended_because: int


class ClientJobFields(Shape, Generic[N], frozen=True):
    id: Bytes32
    model: str | None
    status: JobStatus
    in_progress_at: N | None
    result_cid: str | None
    svc: ClientJobDetails[N]

    @property
    def ended(self) -> bool:
        return self.status in ENDED_JOB


class ClientJob(ClientJobFields[Digits], frozen=True, tag_field="object", tag="job"):
    as_of_block: Digits


class ModelSummary(Shape, Generic[N], frozen=True):
    jobs: N
    completed: N
    priced: N
    escrowed: N
    model_id: N


class SummaryFields(Shape, Generic[N], frozen=True):
    jobs: N
    completed: N
    priced: N
    escrowed: N
    by_model: tuple[ModelSummary[N], ...]


class Summary(SummaryFields[Digits], frozen=True):
    as_of_block: Digits


class PostedShape(Shape, frozen=True):
    job_id: Bytes32
    task_cid: str
    tx_hash: Bytes32


class Cancelled(Shape, frozen=True):
    job_id: Bytes32
    tx_hash: Bytes32
