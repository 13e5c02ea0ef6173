"""Shapes of batches: a batch and lists of them, the plan for one, and the lines of its output and error files."""

from typing import Any, Generic, Literal

from common.wire.shapes import Bytes32, Digits, N, Shape
from common.wire.states import ENDED_BATCH, BatchStatus


class BatchError(Shape, frozen=True):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Shape, frozen=True):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Shape, frozen=True):
    completed: int
    failed: int
    total: int


class BatchTerms(Shape, frozen=True):
    sla: str


class BatchFields(Shape, frozen=True):
    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    svc: BatchTerms
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


class Batch(BatchFields, frozen=True, kw_only=True, tag_field="object", tag="batch"):
    errors: BatchErrors | None
    metadata: dict[str, str]


class BatchAsOf(Batch, frozen=True, kw_only=True, tag="batch"):
    as_of_block: Digits


class BatchList(Shape, frozen=True):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    as_of_block: Digits


class PlannedShare(Shape, Generic[N], frozen=True):
    provider_id: N
    box_key: Bytes32
    rate_in: N
    rate_out: N
    lines: N


class PlannedModelShape(Shape, Generic[N], frozen=True):
    model_id: N
    lines: N
    allocation: tuple[PlannedShare[N], ...]


class PlanShape(Shape, Generic[N], frozen=True):
    plan: tuple[PlannedModelShape[N], ...]


class OutputDetails(Shape, Generic[N], frozen=True):
    job_id: Bytes32
    result_cid: str
    provider: int
    rate_in: N
    rate_out: N
    completion_tok: int


class LineResponse(Shape, frozen=True):
    """`body` is null: the result is sealed to its owner, and fetched by its CID."""

    status_code: int
    request_id: str
    body: None


class OutputLine(Shape, Generic[N], frozen=True):
    """A line of a batch's output file: one settled job. `custom_id` travels sealed: the coordinator never sees it."""

    id: str
    custom_id: None
    response: LineResponse
    error: None
    svc: OutputDetails[N]


class LineError(Shape, frozen=True):
    code: str
    message: str


class ErrorDetails(Shape, frozen=True):
    job_id: Bytes32 | None
    line: int


class ErrorLine(Shape, frozen=True):
    """A line of a batch's error file: one line that did not end in a settled job."""

    id: str
    custom_id: None
    response: None
    error: LineError
    svc: ErrorDetails


# Shapes of uploaded files.

Purpose = Literal["input", "result", "batch", "batch_output"]


class FileDetails(Shape, frozen=True):
    cid: str
    lines: int


class FileFields(Shape, frozen=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: str
    svc: FileDetails


class File(FileFields, frozen=True, tag_field="object", tag="file"):
    status: Literal["uploaded", "processed"]
