"""Declarations of routes. A declaration reads and limits requests, and describes the route in /openapi.json."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import attrs

from common.api import limits
from common.api.errors import RECEIPT_TIMEOUT, contract_error_names
from common.api.fields import Kind, QueryUint, Schema, object_example, object_schema, read_object
from common.api.member_texts import NO_EXAMPLE
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.responses import Response
from coordinatord.http.streaming import HeldResponse, StreamedResponse

Method = Literal["GET", "POST", "PUT", "DELETE"]


@attrs.frozen(slots=True)
class Request:
    """Request that a handler receives, parsed and checked as the route declares."""

    caller: str
    path: Mapping[str, Any]
    # Parameters that the request has.
    query: Mapping[str, Any]
    body: Any
    session: SessionRow | None
    # Headers that the route declares and the request has.
    headers: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def owner(self) -> bytes:
        """Address of the session, on a route that requires one."""
        if self.session is None:
            raise AssertionError("the handler needs a session, but the route does not require one")
        return self.session.address

    def prefers(self, preference: str) -> bool:
        """Return True if the header `prefer` (RFC 7240) lists the preference. The route must declare the header."""
        preferences = self.headers.get("prefer", "").lower().split(",")
        return preference in [part.split(";")[0].strip() for part in preferences]


AnyResponse = Response | StreamedResponse | HeldResponse
Handler = Callable[[Request], Awaitable[AnyResponse]]


@attrs.frozen(slots=True)
class Parameter:
    """Variable path segment, query parameter or header. Without `about`, the description is `MEMBER_TEXTS[name].about`.

    An optional parameter appears in the route's example only if it has an `example`.
    """

    kind: Kind[Any]
    about: str = ""
    required: bool = False
    example: Any = NO_EXAMPLE


@attrs.frozen(slots=True)
class Body:
    """JSON body: size limit, reader, schema, and examples by name."""

    max_bytes: int
    read: Callable[[Mapping[str, object]], Any]
    schema: Callable[[], Schema]
    examples: Callable[[], Mapping[str, Any]]

    @classmethod
    def of(cls, shape: type[Any], max_bytes: int = limits.MAX_OTHER_BODY_BYTES) -> "Body":
        return cls(
            max_bytes,
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
        max_bytes: int = limits.MAX_OTHER_BODY_BYTES,
    ) -> "Body":
        return cls(max_bytes, read, lambda: {"anyOf": [object_schema(shape) for shape in shapes]}, examples)


@attrs.frozen(slots=True)
class Form:
    """multipart/form-data body, which the handler receives as an UploadForm. `parts` holds the schema of each part."""

    parts: Mapping[str, Schema]
    required: tuple[str, ...]


@attrs.frozen(slots=True)
class Reply:
    """Response that a route declares, for /openapi.json.

    `code` distinguishes errors of one status: the error's code, or the type of an error without a code. `shape` is the
    shape of the body, and `about` describes the body. `example` overrides parts of the example that is composed from
    the shape. `media` lists the types of a body that is not JSON. `lines` lists the shapes of the lines of a JSONL
    body. `headers` are specific to this response.
    """

    status: int
    code: str | None = None
    shape: Any = None
    media: tuple[str, ...] = ()
    lines: tuple[Any, ...] = ()
    about: str = ""
    example: Any = attrs.field(default=NO_EXAMPLE, hash=False)
    headers: tuple[str, ...] = ()


@attrs.frozen(slots=True, kw_only=True)
class Route:
    method: Method
    # `{name}` is one segment, `{name...}` the rest of the path.
    path: str
    # Operation id, from which code generators derive function names.
    id: str
    # A key of TAGS.
    tag: str
    about: str
    details: str = ""
    handler: Handler
    replies: tuple[Reply, ...]
    segments: Mapping[str, Parameter] = attrs.field(factory=dict)
    query: Mapping[str, Parameter] = attrs.field(factory=dict)
    # Header names in lower case.
    headers: Mapping[str, Parameter] = attrs.field(factory=dict)
    body: Body | None = None
    form: Form | None = None
    # Requests without a live session are rejected.
    session: bool = False
    # The route requires a session only if this query parameter is present.
    session_if_query: str | None = None
    # Responses are read from the index, so requests are rejected until the index has caught up with the chain.
    index_backed: bool = False
    # Responses of this index-backed route also change between blocks, so they are never cached.
    changes_between_blocks: bool = False
    paged: bool = False

    @property
    def cached_until_next_block(self) -> bool:
        """True if responses depend only on the index. The dispatcher caches such responses until the next block."""
        streamed = any(reply.media for reply in self.replies)
        uncacheable = streamed or self.changes_between_blocks or self.session
        return self.index_backed and self.body is None and not uncacheable


def malformed_replies(*codes: str | None) -> tuple[Reply, ...]:
    return tuple(Reply(400, code) for code in (None, *codes))


def chain_refusal_replies(*calls: str) -> tuple[Reply, ...]:
    """Return a reply for each contract error of these calls, and one for an unknown error."""
    return tuple(Reply(409, name) for name in (None, *contract_error_names(*calls)))


INDEX_REPLIES: Final = (Reply(503, "not_ready"),)
"""Replies of every index-backed route."""

CHAIN_REPLIES: Final = (Reply(503, "chain_unreachable"), Reply(503, "rate_limited"), Reply(503, "endpoint_refused"))
"""Replies of every route that reads the chain. Each route also lists the error code of its own read."""

RELAY_REPLIES: Final = (
    *CHAIN_REPLIES,
    Reply(429, "busy"),
    Reply(503, "relayer_funds"),
    Reply(503, "nonce_conflict"),
    Reply(503, "rpc_internal"),
    Reply(503, "relay_queue_full"),
    Reply(503, "relay_queue_timeout"),
    Reply(504, RECEIPT_TIMEOUT),
)
"""Replies of every route that relays transactions."""

STORE_REPLIES: Final = (Reply(503, "store_unavailable"), Reply(503, "store_rejected"))
"""Replies of every route that uses the object store."""


PAGE_PARAMETERS: Final = {
    "limit": Parameter(
        QueryUint(32, 1, limits.MAX_PAGE_ROWS),
        f"maximum number of rows, 1 to {limits.MAX_PAGE_ROWS} (default {limits.DEFAULT_PAGE_ROWS})",
    ),
    "offset": Parameter(
        QueryUint(32, 0, limits.MAX_OFFSET_ROWS), f"number of rows to skip, 0 to {limits.MAX_OFFSET_ROWS} (default 0)"
    ),
}
"""The parameters of every paged route."""
