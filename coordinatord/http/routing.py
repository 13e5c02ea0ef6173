"""Declarations of routes. One declaration reads requests, enforces limits and generates /openapi.json."""

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
    """Request as a handler receives it, read and checked by the route's declaration."""

    caller: str
    path: Mapping[str, Any]
    # Absent parameters are left out.
    query: Mapping[str, Any]
    body: Any
    session: SessionRow | None
    # Only declared headers that are present.
    headers: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def owner(self) -> bytes:
        """Address of the session, on a route that requires one."""
        if self.session is None:
            raise AssertionError("the route requires a session")
        return self.session.address

    def prefers(self, preference: str) -> bool:
        """Return True if the header `prefer` (RFC 7240) lists the preference. The route must declare the header."""
        preferences = self.headers.get("prefer", "").lower().split(",")
        return preference in [part.split(";")[0].strip() for part in preferences]


AnyResponse = Response | StreamedResponse | HeldResponse
Handler = Callable[[Request], Awaitable[AnyResponse]]


@attrs.frozen(slots=True)
class Parameter:
    """Variable path segment, query parameter or header. Its description defaults to the one in `WORDS`.

    An optional parameter with an `example` is part of the route's example.
    """

    kind: Kind[Any]
    about: str = ""
    required: bool = False
    example: Any = NOTHING


@attrs.frozen(slots=True)
class Body:
    """JSON body: size limit, reader, schema, and examples by name."""

    limit: int
    read: Callable[[Mapping[str, object]], Any]
    schema: Callable[[], Schema]
    examples: Callable[[], Mapping[str, Any]]

    @classmethod
    def of(cls, shape: type[Any], limit: int = limits.PLAIN_BODY_BYTES) -> "Body":
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
        limit: int = limits.PLAIN_BODY_BYTES,
    ) -> "Body":
        return cls(limit, read, lambda: {"anyOf": [object_schema(shape) for shape in shapes]}, examples)


@attrs.frozen(slots=True)
class Form:
    """multipart/form-data body, passed to the handler as an UploadForm. Holds the schemas of its parts."""

    parts: Mapping[str, Schema]
    required: tuple[str, ...]


@attrs.frozen(slots=True)
class Reply:
    """Response that the route may send.

    `code` distinguishes errors of one status: the error's code or, without one, its type. `shape` is the shape of the
    body, `about` its description, and `example` overrides the example composed from its members. `media` lists the
    types of a body that is not JSON, and `lines` the shapes of its lines if it is JSONL. `headers` are specific to this
    response.
    """

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
    # `{name}` is one segment, `{name...}` the rest of the path.
    path: str
    # Operation id, from which generators derive function names.
    id: str
    # A key of TAGS.
    tag: str
    about: str
    details: str = ""
    handler: Handler
    replies: tuple[Reply, ...]
    segments: Mapping[str, Parameter] = attrs.field(factory=dict)
    query: Mapping[str, Parameter] = attrs.field(factory=dict)
    # Names in lower case.
    headers: Mapping[str, Parameter] = attrs.field(factory=dict)
    body: Body | None = None
    form: Form | None = None
    # Reject requests without a live session.
    session: bool = False
    # Requires a session only if this query parameter is present.
    session_with: str | None = None
    index_backed: bool = False
    # Responses change while the index stays at its position, although the route is index-backed.
    of_the_moment: bool = False
    paged: bool = False

    @property
    def cached_until_next_block(self) -> bool:
        """True if responses depend only on the index. They get an ETag and are cached until the next block."""
        streamed = any(reply.media for reply in self.replies)
        moving = streamed or self.of_the_moment
        return self.index_backed and self.body is None and not self.session and not moving


def malformed(*codes: str | None) -> tuple[Reply, ...]:
    return tuple(Reply(400, code) for code in (None, *codes))


def refused_by_chain(*calls: str) -> tuple[Reply, ...]:
    """Return a reply for each contract error of these calls, and one for an unknown error."""
    return tuple(Reply(409, name) for name in (None, *contract_errors(*calls)))


INDEX: Final = (Reply(503, "not_ready"),)
"""Replies of every index-backed route."""

CHAIN: Final = (Reply(503, "chain_unreachable"), Reply(503, "rate_limited"), Reply(503, "endpoint_refused"))
"""Every route that reads the chain, in addition to the code of its read."""

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
"""Replies of every route that relays."""

STORE: Final = (Reply(503, "store_unavailable"), Reply(503, "store_rejected"))
"""Replies of every route that stores."""


PAGE: Final = {
    "limit": Parameter(
        Decimal(32, 1, limits.MAX_PAGE_ROWS),
        f"at most so many, 1 to {limits.MAX_PAGE_ROWS} (default {limits.DEFAULT_PAGE_ROWS})",
    ),
    "offset": Parameter(
        Decimal(32, 0, limits.MAX_OFFSET_ROWS), f"pass over so many, 0 to {limits.MAX_OFFSET_ROWS} (default 0)"
    ),
}
"""The parameters of every paged route."""


T = TypeVar("T")
