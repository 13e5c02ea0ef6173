"""What the coordinator answers, as frozen values. Decimal strings are read as integers; unknown fields are ignored.

Ids, hashes, addresses and keys stay 0x-prefixed text, as every other tool shows them.
"""

from typing import Any, Final, Literal

import msgspec

JobStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
Purpose = Literal["input", "result", "batch", "batch_output"]

ENDED_JOB: Final = frozenset({"completed", "failed", "cancelled"})
ENDED_BATCH: Final = frozenset({"completed", "failed", "expired", "cancelled"})
# Why a job that is not settled has ended, as batch error lines name it.
ENDED_BECAUSE: Final = {2: "cancelled", 3: "provider_fail", 4: "reclaim", 5: "expired"}


class Record(msgspec.Struct, frozen=True):
    """`msgspec.to_builtins(record)` gives it back as plain JSON values."""


class ModelDetails(Record, frozen=True):
    model_id: int
    enabled: bool
    params_schema: dict[str, Any] | None = None


class Model(Record, frozen=True):
    id: str
    owned_by: str
    svc: ModelDetails


class Candidate(Record, frozen=True):
    """A live provider that would take the order at these rates."""

    provider_id: int
    box_key: str
    rate_in: int
    rate_out: int


class TokenDomain(Record, frozen=True):
    name: str
    version: str
    chainId: int  # noqa: N815 - EIP-712 names it so
    verifyingContract: str  # noqa: N815


class Authorization(Record, frozen=True):
    domain: TokenDomain
    to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: str


class Quote(Record, frozen=True):
    """What the order comes to, in base units of the payment token."""

    cap: int
    fee_bps: int
    fee: int
    gas_fee: int
    amount: int
    authorization: Authorization


class Quoted(Record, frozen=True):
    """`candidates`: the cheapest live providers whose ask the order clears; none is no obstacle to submitting."""

    quote: Quote
    candidates: tuple[Candidate, ...]


class Posted(Record, frozen=True):
    job_id: str
    task_cid: str
    tx_hash: str


class Cancelled(Record, frozen=True):
    job_id: str
    tx_hash: str


class JobDetails(Record, frozen=True):
    job_id: str
    owner: str
    model_id: int
    sla_secs: int
    rate_in: int
    rate_out: int
    units_in: int
    units_out: int
    designated: int
    provider_id: int
    expires_at: int
    task_cid: str
    completion_tok: int
    state: int
    ended_because: int


class Job(Record, frozen=True):
    id: str
    model: str | None
    status: JobStatus
    in_progress_at: int | None
    result_cid: str | None
    svc: JobDetails

    @property
    def ended(self) -> bool:
        return self.status in ENDED_JOB


class BookRow(Record, frozen=True):
    job_id: str
    owner: str
    c: str
    model_id: int
    sla_secs: int
    designated: int
    rate_in: int
    rate_out: int
    units_in: int
    units_out: int
    expires_at: int
    provider_id: int
    claimed_at: int
    completion_tok: int
    posted_block: int
    state: int
    ended_because: int
    task_cid: str
    result_cid: str | None


class ModelSummary(Record, frozen=True):
    jobs: int
    completed: int
    priced: int
    escrowed: int
    model_id: int


class Summary(Record, frozen=True):
    jobs: int
    completed: int
    priced: int
    escrowed: int
    by_model: tuple[ModelSummary, ...]


class Provider(Record, frozen=True):
    provider_id: int
    operator: str
    box_key: str | None
    evidence: Any
    listed: bool
    reputation: int
    allow_all_models: bool
    allowed_models: tuple[int, ...]
    capacity: int
    active_jobs: int


class Ask(Record, frozen=True):
    provider_id: int
    model_id: int
    sla: int
    rate_in: int
    rate_out: int


class Floor(Record, frozen=True):
    model_id: int
    sla: int
    rate_in: int
    rate_out: int


class AllowlistEntry(Record, frozen=True):
    key: str
    status: int
    entry: dict[str, Any]


class Contracts(Record, frozen=True):
    job_registry: str
    provider_registry: str
    ask_registry: str
    paytoken: str


class TokenName(Record, frozen=True):
    name: str
    version: str


class Deployment(Record, frozen=True):
    chain_id: int
    contracts: Contracts
    decimals: int
    token_domain: TokenName
    gas_price: int
    head_block: int
    block_time_ms: int
    fee_bps: int


class Readiness(Record, frozen=True):
    ready: bool
    reason: str
    cursor: int | None = None
    head_block: int | None = None
    lag: int | None = None


class Evidence(Record, frozen=True):
    type: str
    report_data: str
    debug: bool
    release: int


class EscrowKey(Record, frozen=True):
    escrow_public_key: str
    evidence: Evidence
    issued_at: int


class Session(Record, frozen=True):
    token: str
    expires_at: int
    provider_id: int | None = None


class FileDetails(Record, frozen=True):
    cid: str
    lines: int


class File(Record, frozen=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: str
    svc: FileDetails


class RequestCounts(Record, frozen=True):
    completed: int
    failed: int
    total: int


class BatchDetails(Record, frozen=True):
    sla: str


class Batch(Record, frozen=True):
    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    svc: BatchDetails
    errors: Any = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    metadata: dict[str, str] | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED_BATCH


class Allocation(Record, frozen=True):
    provider_id: int
    box_key: str
    rate_in: int
    rate_out: int
    lines: int


class ModelPlan(Record, frozen=True):
    model_id: int
    lines: int
    allocation: tuple[Allocation, ...]


class OutputDetails(Record, frozen=True):
    job_id: str
    result_cid: str
    provider: int
    rate_in: int
    rate_out: int
    completion_tok: int


class OutputLine(Record, frozen=True):
    id: str
    svc: OutputDetails


class LineError(Record, frozen=True):
    code: str
    message: str


class ErrorDetails(Record, frozen=True):
    line: int
    job_id: str | None = None


class ErrorLine(Record, frozen=True):
    id: str
    error: LineError
    svc: ErrorDetails
