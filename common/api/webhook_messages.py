"""Bodies of the messages that webhook endpoints receive.

A message is only a notification, like an event of the event stream. Read the job before acting.
"""

from typing import Annotated, Literal

from common.api.batches import RequestCounts
from common.api.events import EventId, JobEvent
from common.api.shapes import Shape, described
from common.api.states import BATCH_STATUS, BatchStatus
from common.api.webhooks import TIMESTAMP, WEBHOOK_ID, BatchMessageType, JobMessageType
from common.api.worked_order import BATCH_ID


class JobMessage(Shape, frozen=True):
    """Something that happened to a job of the owner; `job.taken_back`: a reorganisation undid it."""

    type: JobMessageType | Literal["job.taken_back"]
    timestamp: Annotated[str, TIMESTAMP]
    data: JobEvent


class BatchChange(Shape, frozen=True):
    """State of a batch after a change."""

    id: Annotated[str, described("id of the batch", BATCH_ID)]
    status: Annotated[BatchStatus, described(BATCH_STATUS, "completed")]
    request_counts: Annotated[RequestCounts | None, described("how its lines ended, or null while it is running")]
    output_file_id: str | None
    error_file_id: str | None


class BatchMessage(Shape, frozen=True):
    """A change of a batch."""

    type: BatchMessageType
    timestamp: Annotated[str, TIMESTAMP]
    data: BatchChange


class GapData(Shape, frozen=True):
    """Position from which events continue."""

    id: EventId


class GapMessage(Shape, frozen=True):
    """A gap: events were lost because the index was rebuilt or too many messages waited. Read your jobs again."""

    type: Literal["events.reset"]
    timestamp: Annotated[str, TIMESTAMP]
    data: GapData


class TestData(Shape, frozen=True):
    """The tested endpoint."""

    webhook_id: Annotated[str, described("id of the endpoint", WEBHOOK_ID)]


class TestMessage(Shape, frozen=True):
    """A test message that the owner requested."""

    type: Literal["webhook.test"]
    timestamp: Annotated[str, TIMESTAMP]
    data: TestData
