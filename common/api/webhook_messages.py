"""Bodies of the messages that webhook endpoints receive.

A message is only a notification, like an event of the event stream. Read the job before acting.
"""

from typing import Annotated, Literal

from common.api.batches import RequestCounts
from common.api.events import EventId, JobEvent
from common.api.shapes import Shape, described
from common.api.states import BATCH_STATUS_DESCRIPTION, BatchStatus
from common.api.webhooks import EXAMPLE_WEBHOOK_ID, TIMESTAMP_META, BatchMessageType, JobMessageType
from common.api.worked_order import BATCH_ID


class JobMessage(Shape, frozen=True):
    """A change of an owner's job. `job.taken_back` means that a reorganisation undid an earlier change."""

    type: JobMessageType | Literal["job.taken_back"]
    timestamp: Annotated[str, TIMESTAMP_META]
    data: JobEvent


class BatchChange(Shape, frozen=True):
    """State of a batch after a change."""

    id: Annotated[str, described("id of the batch", BATCH_ID)]
    status: Annotated[BatchStatus, described(BATCH_STATUS_DESCRIPTION, "completed")]
    request_counts: Annotated[
        RequestCounts | None, described("number of lines by outcome, or null while the batch runs")
    ]
    output_file_id: str | None
    error_file_id: str | None


class BatchMessage(Shape, frozen=True):
    """A change of a batch."""

    type: BatchMessageType
    timestamp: Annotated[str, TIMESTAMP_META]
    data: BatchChange


class GapData(Shape, frozen=True):
    """Event id from which events continue."""

    id: EventId


class GapMessage(Shape, frozen=True):
    """Notice that events were lost: the index was rebuilt or too many messages waited. Read your jobs again."""

    type: Literal["events.reset"]
    timestamp: Annotated[str, TIMESTAMP_META]
    data: GapData


class TestData(Shape, frozen=True):
    """The tested endpoint."""

    webhook_id: Annotated[str, described("id of the endpoint", EXAMPLE_WEBHOOK_ID)]


class TestMessage(Shape, frozen=True):
    """A test message that the owner requested."""

    type: Literal["webhook.test"]
    timestamp: Annotated[str, TIMESTAMP_META]
    data: TestData
