"""Shapes of batches: a batch and lists of them, the plan for one, and the lines of its output and error files."""

from typing import Annotated, Any, Generic, Literal

from common.api.shapes import Bytes32, Digits, N, Shape, described
from common.api.states import BATCH_STATUS, ENDED_BATCH, BatchStatus
from common.api.worked_order import BATCH_ID, JOB


class BatchError(Shape, frozen=True):
    """Why an input could not be read."""

    code: Annotated[
        str, described("the error's name: `object_missing`, when the store lost the file", "object_missing")
    ]
    message: Annotated[str, described("sentence for a person", "the input file is gone")]
    param: Annotated[str | None, described("member of the batch at fault, or null", "input_file_id")]
    line: Annotated[int | None, described("line from which on nothing could be read, or null", 1)]


class BatchErrors(Shape, frozen=True):
    """Errors of a batch."""

    object: Annotated[Literal["list"], described("kind of the object", "list")]
    data: list[BatchError]


class RequestCounts(Shape, frozen=True):
    """Numbers of lines by outcome."""

    completed: Annotated[int, described("lines whose jobs settled", 1)]
    failed: Annotated[int, described("lines that were skipped, or whose jobs ended without a result", 0)]
    total: Annotated[int, described("lines recorded so far", 1)]


class BatchTerms(Shape, frozen=True):
    """The window of a batch."""

    sla: Annotated[str, described("label of the window: `1h` or `24h`", "1h")]


class BatchFields(Shape, frozen=True):
    id: Annotated[str, described("id of the batch", BATCH_ID)]
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Annotated[BatchStatus, described(BATCH_STATUS, "completed")]
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
        return self.status in ENDED_BATCH


class Batch(BatchFields, frozen=True, kw_only=True, tag_field="object", tag="batch"):
    """A batch: the jobs of the lines of one file, followed together."""

    errors: BatchErrors | None
    metadata: dict[str, str]


class BatchAsOf(Batch, frozen=True, kw_only=True, tag="batch"):
    """A batch, and when it was read."""

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
    """Lines that one provider could take, at its ask."""

    provider_id: N
    box_key: Bytes32
    rate_in: N
    rate_out: N
    lines: Annotated[N, described("lines that it could take", "100")]


class PlannedModelShape(Shape, Generic[N], frozen=True):
    """Who could take the lines of one model; fewer than asked for where the network has no room."""

    model_id: N
    lines: Annotated[N, described("lines that were asked for", "100")]
    allocation: tuple[PlannedShare[N], ...]


class PlanShape(Shape, Generic[N], frozen=True):
    """Who could take a batch now."""

    plan: tuple[PlannedModelShape[N], ...]


LineId = Annotated[
    str,
    described("`batch_req_`, the batch's id, `_` and the line's number in the input file", f"batch_req_{BATCH_ID}_1"),
]
CustomId = Annotated[None, described("null: it travels sealed, in the envelope", None)]


class OutputDetails(Shape, Generic[N], frozen=True):
    """The job of a line that settled."""

    job_id: Bytes32
    result_cid: str
    provider: Annotated[int, described("id of the provider that settled the job", 2)]
    rate_in: N
    rate_out: N
    completion_tok: int


class LineResponse(Shape, frozen=True):
    """`body` is null: the result is sealed to its owner, and fetched by its CID."""

    status_code: Annotated[int, described("200: the job settled", 200)]
    request_id: Annotated[str, described("id of the job again", JOB)]
    body: Annotated[None, described("null: the result is sealed; fetch `svc.result_cid`", None)]


class OutputLine(Shape, Generic[N], frozen=True):
    """A line of a batch's output file: one settled job. `custom_id` travels sealed: the coordinator never sees it."""

    id: LineId
    custom_id: CustomId
    response: Annotated[LineResponse, described("in the shape of an answer, without its body")]
    error: Annotated[None, described("null: the job settled", None)]
    svc: OutputDetails[N]


class LineError(Shape, frozen=True):
    """Why a line did not end in a settled job."""

    code: Annotated[str, described("the error's name: branch on it", "provider_fail")]
    message: Annotated[str, described("sentence for a person; may change at any time", "the provider failed the job")]


class ErrorDetails(Shape, frozen=True):
    """State of a line, and its job."""

    job_id: Annotated[
        Bytes32 | None,
        described(
            "the line's id, or null if the line was rejected before its id was read; GET /v1/jobs/{id} tells"
            " whether it ever was a job",
            "0x" + "0a" * 32,
        ),
    ]
    line: Annotated[int, described("number of the line in the input file, from 1, blank lines counted", 2)]


class ErrorLine(Shape, frozen=True):
    """A line of a batch's error file: one line that did not end in a settled job."""

    id: LineId
    custom_id: CustomId
    response: Annotated[None, described("null: there is no result", None)]
    error: LineError
    svc: ErrorDetails
