"""Shapes of webhook endpoints."""

from typing import Annotated, Final, Literal

from common.api.shapes import Shape, described

EXAMPLE_WEBHOOK_ID: Final = "whk_0123456789abcdef01234567"
_EXAMPLE_MESSAGE_ID: Final = "msg_0123456789abcdef0123456789abcdef"
_EXAMPLE_TIME: Final = 1800000031

JobMessageType = Literal[
    "job.posted", "job.claimed", "job.settled", "job.cancelled", "job.failed", "job.reclaimed", "job.expired"
]
BatchMessageType = Literal[
    "batch.in_progress", "batch.cancelling", "batch.completed", "batch.failed", "batch.expired", "batch.cancelled"
]
SELECTABLE_EVENTS: Final[tuple[str, ...]] = (*JobMessageType.__args__, *BatchMessageType.__args__)  # type: ignore[attr-defined] # a Literal's values
"""Message types that an endpoint can select. Every endpoint also gets messages about undone events, gaps and tests."""

TIMESTAMP_META = described("time of the job's block or of the batch's change, in RFC 3339", "2027-01-15T08:00:30Z")


class WebhookFields(Shape, frozen=True):
    id: Annotated[str, described("id of the endpoint", EXAMPLE_WEBHOOK_ID)]
    url: Annotated[str, described("URL that receives the messages", "https://hooks.example.org/market")]
    events: Annotated[
        list[str], described("events that the endpoint receives; empty means all", ["job.settled", "batch.completed"])
    ]
    created_at: int
    status: Annotated[
        Literal["new", "working", "failing", "disabled"],
        described(
            "`new` until the first attempt ends, then the outcome of the last attempt; a `disabled` endpoint gets no"
            " messages",
            "working",
        ),
    ]
    disabled_because: Annotated[
        Literal["gone", "failing"] | None,
        described(
            "null, `gone` (the endpoint returned 410) or `failing` (a day of failures); to enable the endpoint again,"
            " remove it and add it",
            None,
        ),
    ]
    disabled_at: Annotated[
        int | None, described("time at which the endpoint was disabled, in Unix seconds, or null", None)
    ]
    failing_since: Annotated[int | None, described("time of the first failure since the last success, or null", None)]
    last_attempt_at: Annotated[
        int | None, described("time of the last attempt, in Unix seconds, or null", _EXAMPLE_TIME)
    ]
    last_status: Annotated[
        int | None, described("HTTP status of the last attempt, or null without an attempt or response", 200)
    ]
    waiting: Annotated[int, described("messages not delivered yet", 0)]
    delivered: Annotated[int, described("messages for which the endpoint returned a status of 200 to 299", 7)]
    dropped: Annotated[int, described("messages dropped after the last retry, or because too many waited", 0)]


class Webhook(WebhookFields, frozen=True, tag_field="object", tag="webhook"):
    """An endpoint: a URL that receives the events of its owner's jobs and batches."""


class NewWebhook(Webhook, frozen=True, kw_only=True, tag="webhook"):
    """An endpoint with its secret, which is returned only once."""

    secret: Annotated[
        str,
        described("key that signs the messages; returned only here", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ]


class WebhookList(Shape, frozen=True):
    """Endpoints of one owner, oldest first."""

    object: Annotated[Literal["list"], described("kind of the object", "list")]
    data: list[Webhook]


class WebhookRemoved(Shape, frozen=True):
    """A removed endpoint. Its waiting messages are deleted."""

    id: Annotated[str, described("id of the endpoint", EXAMPLE_WEBHOOK_ID)]
    object: Annotated[Literal["webhook.removed"], described("kind of the object", "webhook.removed")]


class WebhookTested(Shape, frozen=True):
    """A test message that was queued."""

    id: Annotated[str, described("`webhook-id` of the message, whose type is `webhook.test`", _EXAMPLE_MESSAGE_ID)]
    object: Annotated[Literal["webhook.test"], described("kind of the object", "webhook.test")]
