"""Shapes of the batch API: batches, pages of batches, plans, and the lines of output and error files."""

from typing import Annotated, Any, Generic, Literal

from common.api.shapes import Bytes32, Digits, N, Shape, described
from common.api.states import BATCH_STATUS_DESCRIPTION, ENDED_BATCH_STATUSES, BatchStatus
from common.api.worked_order import BATCH_ID, JOB_ID


class BatchError(Shape, frozen=True):
    """Reason why the input file could not be read."""

    code: Annotated[str, described("code of the error: `object_missing` if the store lost the file", "object_missing")]
    message: Annotated[str, described("human-readable message", "the input file is gone")]
    param: Annotated[str | None, described("field of the batch at fault, or null", "input_file_id")]
    line: Annotated[int | None, described("first line that could not be read, or null", 1)]


class BatchErrors(Shape, frozen=True):
    """Errors of a batch."""

    object: Annotated[Literal["list"], described("kind of the object", "list")]
    data: list[BatchError]


class RequestCounts(Shape, frozen=True):
    """Number of lines by outcome."""

    completed: Annotated[int, described("lines whose jobs settled", 1)]
    failed: Annotated[int, described("lines that were skipped, or whose jobs ended without a result", 0)]
    total: Annotated[int, described("lines recorded so far", 1)]


class BatchTerms(Shape, frozen=True):
    """Window of a batch."""

    sla: Annotated[str, described("label of the window: `1h` or `24h`", "1h")]


class BatchFields(Shape, frozen=True):
    id: Annotated[str, described("id of the batch", BATCH_ID)]
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Annotated[BatchStatus, described(BATCH_STATUS_DESCRIPTION, "completed")]
    created_at: int
    expires_at: Annotated[int, described("end of the window, in Unix seconds", 1800003600)]
    request_counts: RequestCounts
    svc: BatchTerms
    errors: Any = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: Annotated[
        int | None, described("time of the first lines, in Unix seconds, or null", 1800000001)
    ] = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    metadata: dict[str, str] | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED_BATCH_STATUSES


class Batch(BatchFields, frozen=True, kw_only=True, tag_field="object", tag="batch"):
    """A batch: one job for each line of an uploaded file."""

    errors: BatchErrors | None
    metadata: dict[str, str]


class BatchAsOf(Batch, frozen=True, kw_only=True, tag="batch"):
    """A batch, with the block at which it was read."""

    as_of_block: Digits


class BatchList(Shape, frozen=True):
    """A page of an address's batches, newest first."""

    object: Annotated[Literal["list"], described("kind of the object", "list")]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    as_of_block: Digits


class PlannedShare(Shape, Generic[N], frozen=True):
    """Number of lines that one provider could take, with the rates of its ask."""

    provider_id: N
    box_key: Bytes32
    rate_in: N
    rate_out: N
    lines: Annotated[N, described("lines that this provider could take", "100")]


class PlannedModelShape(Shape, Generic[N], frozen=True):
    """Providers for the lines of one model. If capacity is short, they take fewer than `lines` in total."""

    model_id: N
    lines: Annotated[N, described("lines in the request", "100")]
    allocation: tuple[PlannedShare[N], ...]


class PlanShape(Shape, Generic[N], frozen=True):
    """Providers that could take a batch now."""

    plan: tuple[PlannedModelShape[N], ...]


LineId = Annotated[
    str,
    described("`batch_req_`, the batch's id, `_` and the line's number in the input file", f"batch_req_{BATCH_ID}_1"),
]
CustomId = Annotated[None, described("null: `custom_id` is sealed in the envelope", None)]


class OutputDetails(Shape, Generic[N], frozen=True):
    """Job of a line that settled."""

    job_id: Bytes32
    result_cid: str
    provider: Annotated[int, described("id of the provider that settled the job", 2)]
    rate_in: N
    rate_out: N
    completion_tok: int


class LineResponse(Shape, frozen=True):
    """HTTP response of a settled line. `body` is null, because the result is sealed. Fetch the result by its CID."""

    status_code: Annotated[int, described("200: the job settled", 200)]
    request_id: Annotated[str, described("id of the job", JOB_ID)]
    body: Annotated[None, described("null: the result is sealed; fetch `svc.result_cid`", None)]


class OutputLine(Shape, Generic[N], frozen=True):
    """A line of a batch's output file: one settled job. The coordinator never sees `custom_id`, which is sealed."""

    id: LineId
    custom_id: CustomId
    response: Annotated[LineResponse, described("HTTP response in OpenAI's format, without a body")]
    error: Annotated[None, described("null: the job settled", None)]
    svc: OutputDetails[N]


class LineError(Shape, frozen=True):
    """Reason why a line did not end in a settled job."""

    code: Annotated[str, described("code of the error: branch on it", "provider_fail")]
    message: Annotated[str, described("human-readable message; may change at any time", "the provider failed the job")]


class ErrorDetails(Shape, frozen=True):
    """Job id and line number of a failed line."""

    job_id: Annotated[
        Bytes32 | None,
        described(
            "the line's job id, or null if the line was rejected before its id was read; GET /v1/jobs/{id} shows"
            " whether the job was posted",
            "0x" + "0a" * 32,
        ),
    ]
    line: Annotated[int, described("number of the line in the input file, counted from 1 and including blank lines", 2)]


class ErrorLine(Shape, frozen=True):
    """A line of a batch's error file: one line that did not end in a settled job."""

    id: LineId
    custom_id: CustomId
    response: Annotated[None, described("null: there is no result", None)]
    error: LineError
    svc: ErrorDetails
