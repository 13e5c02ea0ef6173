"""Declarations of routes. One declaration reads requests, enforces limits, and is what /openapi.json says."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeVar

import attrs

from common.api import limits
from common.api.errors import TX_HASH, contract_errors
from common.api.fields import Decimal, Kind, Schema, object_example, object_schema, read_object
from common.api.words import NOTHING
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.responses import Response
from coordinatord.http.streaming import HeldResponse, StreamedResponse

Method = Literal["GET", "POST", "PUT", "DELETE"]


@attrs.frozen(slots=True)
class Request:
    """Request as a handler gets it: read and checked by the route's declaration."""

    caller: str
    path: Mapping[str, Any]
    query: Mapping[str, Any]  # without the parameters that are absent
    body: Any
    session: SessionRow | None
    headers: Mapping[str, Any] = attrs.field(factory=dict)  # those declared, without the ones that are absent

    @property
    def owner(self) -> bytes:
        """The address that is signed in, on a route that requires a session."""
        if self.session is None:
            raise AssertionError("the route requires a session")
        return self.session.address

    def prefers(self, preference: str) -> bool:
        """By the header `prefer` (RFC 7240), where the route declares it."""
        told = self.headers.get("prefer", "").lower().split(",")
        return preference in [part.split(";")[0].strip() for part in told]


AnyResponse = Response | StreamedResponse | HeldResponse
Handler = Callable[[Request], Awaitable[AnyResponse]]


@attrs.frozen(slots=True)
class Parameter:
    """A variable segment of the path, a query parameter or a header. Its sentence is that of `WORDS` unless it has its
    own; an optional one with an `example` is part of the route's example."""

    kind: Kind[Any]
    about: str = ""
    required: bool = False
    example: Any = NOTHING


@attrs.frozen(slots=True)
class Body:
    """A JSON body: how large, how it is read, its schema, and examples by name."""

    limit: int
    read: Callable[[Mapping[str, object]], Any]
    schema: Callable[[], Schema]
    examples: Callable[[], Mapping[str, Any]]

    @classmethod
    def of(cls, shape: type[Any], limit: int = limits.PLAIN_BODY) -> "Body":
        return cls(
            limit,
            lambda values: read_object(shape, values),
            lambda: object_schema(shape),
            lambda: {"example": object_example(shape)},
        )

    @classmethod
    def any_of(
        cls,
        shapes: list[type[Any]],
        read: Callable[[Mapping[str, object]], Any],
        examples: Callable[[], Mapping[str, Any]],
        limit: int = limits.PLAIN_BODY,
    ) -> "Body":
        return cls(limit, read, lambda: {"anyOf": [object_schema(shape) for shape in shapes]}, examples)


@attrs.frozen(slots=True)
class Form:
    """A multipart/form-data body, handed to the handler as an UploadForm: schemas of its parts."""

    parts: Mapping[str, Schema]
    required: tuple[str, ...]


@attrs.frozen(slots=True)
class Reply:
    """An answer that the route may give.

    `code` tells errors of one status apart: a code or, for an error without one, its type. `shape` is a body of its
    own, `about` the sentence on it, `example` where its example differs from what its members make up. `media` are the
    types of a body that is no JSON, `lines` the shapes of the lines of one that is JSONL; `headers` those that this
    answer alone has."""

    status: int
    code: str | None = None
    shape: Any = None
    media: tuple[str, ...] = ()
    lines: tuple[Any, ...] = ()
    about: str = ""
    example: Any = attrs.field(default=NOTHING, hash=False)
    headers: tuple[str, ...] = ()


@attrs.frozen(slots=True, kw_only=True)
class Route:
    method: Method
    path: str  # `{name}` is one segment, `{name...}` the rest
    id: str  # the operation's name, from which generators make a function's
    tag: str  # one of the document's
    about: str
    details: str = ""
    handler: Handler
    replies: tuple[Reply, ...]
    segments: Mapping[str, Parameter] = attrs.field(factory=dict)
    query: Mapping[str, Parameter] = attrs.field(factory=dict)
    headers: Mapping[str, Parameter] = attrs.field(factory=dict)  # by names in lower case
    body: Body | None = None
    form: Form | None = None
    session: bool = False  # refused without a live session
    session_with: str | None = None  # the same, but only with this query parameter
    index_backed: bool = False
    of_the_moment: bool = False  # though index-backed, its answers change while the index stands
    paged: bool = False

    @property
    def kept_while_index_stands(self) -> bool:
        """Its answers are the index's alone: they have an etag, and serve all callers of the block."""
        streamed = any(reply.media for reply in self.replies)
        moving = streamed or self.of_the_moment
        return self.index_backed and self.body is None and not self.session and not moving


def malformed(*codes: str | None) -> tuple[Reply, ...]:
    return tuple(Reply(400, code) for code in (None, *codes))


def refused_by_chain(*calls: str) -> tuple[Reply, ...]:
    """The contract errors that these calls meet, and one that is not known here."""
    return tuple(Reply(409, name) for name in (None, *contract_errors(*calls)))


INDEX: Final = (Reply(503, "not_ready"),)
"""Every index-backed route."""

CHAIN: Final = (Reply(503, "chain_unreachable"), Reply(503, "rate_limited"), Reply(503, "endpoint_refused"))
"""Every route that reads the chain, beside the code of its read."""

RELAY: Final = (
    *CHAIN,
    Reply(429, "busy"),
    Reply(503, "relayer_funds"),
    Reply(503, "nonce_conflict"),
    Reply(503, "rpc_internal"),
    Reply(503, "relay_queue_full"),
    Reply(503, "relay_queue_timeout"),
    Reply(504, TX_HASH),
)
"""Every route that relays."""

STORE: Final = (Reply(503, "store_unavailable"), Reply(503, "store_rejected"))
"""Every route that stores."""


PAGE: Final = {
    "limit": Parameter(
        Decimal(32, 1, limits.LARGEST_PAGE),
        f"at most so many, 1 to {limits.LARGEST_PAGE} (default {limits.DEFAULT_PAGE})",
    ),
    "offset": Parameter(
        Decimal(32, 0, limits.LARGEST_OFFSET), f"pass over so many, 0 to {limits.LARGEST_OFFSET} (default 0)"
    ),
}
"""The parameters of every paged route."""


T = TypeVar("T")
