"""Shapes of webhook endpoints."""

from typing import Annotated, Final, Literal

from common.api.shapes import Shape, described

WEBHOOK_ID: Final = "whk_0123456789abcdef01234567"
MESSAGE_ID: Final = "msg_0123456789abcdef0123456789abcdef"
_AT: Final = 1800000031

JobMessageType = Literal[
    "job.posted", "job.claimed", "job.settled", "job.cancelled", "job.failed", "job.reclaimed", "job.expired"
]
BatchMessageType = Literal[
    "batch.in_progress", "batch.cancelling", "batch.completed", "batch.failed", "batch.expired", "batch.cancelled"
]
WANTED: Final[tuple[str, ...]] = (*JobMessageType.__args__, *BatchMessageType.__args__)  # type: ignore[attr-defined] # a Literal's words
"""Events that an endpoint can select. Every endpoint also gets undone events, gaps and tests."""

TIMESTAMP = described("time of the event in RFC 3339: of its block, or of the batch's change", "2027-01-15T08:00:30Z")


class WebhookFields(Shape, frozen=True):
    id: Annotated[str, described("id of the endpoint", WEBHOOK_ID)]
    url: Annotated[str, described("address that messages are posted to", "https://hooks.example.org/market")]
    events: Annotated[list[str], described("events that it wants; empty: all", ["job.settled", "batch.completed"])]
    created_at: int
    status: Annotated[
        Literal["new", "working", "failing", "disabled"],
        described(
            "`new` before its first answer, then as the last attempt ended; `disabled` gets nothing more", "working"
        ),
    ]
    disabled_because: Annotated[
        Literal["gone", "failing"] | None,
        described("null, `gone` (it answered 410) or `failing` (a day of failures): remove it, and add it again", None),
    ]
    disabled_at: Annotated[
        int | None, described("time from which it gets nothing more, in Unix seconds, or null", None)
    ]
    failing_since: Annotated[int | None, described("time of the first failure since it last worked, or null", None)]
    last_attempt_at: Annotated[int | None, described("time of the last attempt, in Unix seconds, or null", _AT)]
    last_status: Annotated[
        int | None, described("HTTP status of the last attempt; null when no answer came, or none was made", 200)
    ]
    waiting: Annotated[int, described("messages that wait for it", 0)]
    delivered: Annotated[int, described("messages that it answered with a status of 200 to 299", 7)]
    dropped: Annotated[int, described("messages that it did not get: given up, or too many waited", 0)]


class Webhook(WebhookFields, frozen=True, tag_field="object", tag="webhook"):
    """An endpoint: an address that events of its owner's jobs and batches are posted to."""


class NewWebhook(Webhook, frozen=True, kw_only=True, tag="webhook"):
    """An endpoint with its secret, which is returned only once."""

    secret: Annotated[
        str,
        described("key that signs its messages; returned only here", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ]


class WebhookList(Shape, frozen=True):
    """Endpoints of one owner, the oldest first."""

    object: Annotated[Literal["list"], described("kind of the object", "list")]
    data: list[Webhook]


class WebhookRemoved(Shape, frozen=True):
    """A removed endpoint. Its waiting messages are deleted."""

    id: Annotated[str, described("id of the endpoint", WEBHOOK_ID)]
    object: Annotated[Literal["webhook.removed"], described("kind of the object", "webhook.removed")]


class WebhookTested(Shape, frozen=True):
    """A test message that was queued."""

    id: Annotated[str, described("`webhook-id` of the message, whose type is `webhook.test`", MESSAGE_ID)]
    object: Annotated[Literal["webhook.test"], described("kind of the object", "webhook.test")]
