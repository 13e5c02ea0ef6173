"""How a route is declared. One declaration reads requests, enforces limits, and is what /openapi.json says."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import attrs

from coordinatord.api.answers import Answer
from coordinatord.api.streaming import StreamedAnswer
from coordinatord.fields import Decimal, Kind, Schema, object_schema, read_object
from coordinatord.store.sessions import SessionRow

Method = Literal["GET", "POST", "PUT"]

KIB: Final = 1024
MIB: Final = 1024 * KIB


@attrs.frozen(slots=True)
class Request:
    """What a handler gets: everything read and checked by the route's declaration."""

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


Handler = Callable[[Request], Awaitable[Answer | StreamedAnswer]]


@attrs.frozen(slots=True)
class Parameter:
    """A query parameter."""

    kind: Kind[Any]
    about: str = ""
    required: bool = False


@attrs.frozen(slots=True)
class Body:
    """A JSON body: how large, how it is read, and its schema."""

    limit: int
    read: Callable[[Mapping[str, object]], Any]
    schema: Callable[[], Schema]

    @classmethod
    def of(cls, shape: type[Any], limit: int = MIB) -> "Body":
        return cls(limit, lambda values: read_object(shape, values), lambda: object_schema(shape))

    @classmethod
    def any_of(cls, shapes: list[type[Any]], read: Callable[[Mapping[str, object]], Any], limit: int = MIB) -> "Body":
        return cls(limit, read, lambda: {"anyOf": [object_schema(shape) for shape in shapes]})


@attrs.frozen(slots=True)
class Form:
    """A multipart/form-data body, handed to the handler as an UploadForm: schemas of its parts."""

    parts: Mapping[str, Schema]


@attrs.frozen(slots=True)
class Reply:
    """An answer that the route may give. `code` tells errors of one status apart; `shape` is a body of its own;
    `media` are the types of a body that is no JSON."""

    status: int
    code: str | None = None
    shape: Any = None
    media: tuple[str, ...] = ()


@attrs.frozen(slots=True, kw_only=True)
class Route:
    method: Method
    path: str  # `{name}` is one segment, `{name...}` the rest
    about: str
    handler: Handler
    replies: tuple[Reply, ...]
    segments: Mapping[str, Kind[Any]] = attrs.field(factory=dict)
    query: Mapping[str, Parameter] = attrs.field(factory=dict)
    headers: Mapping[str, Parameter] = attrs.field(factory=dict)  # by names in lower case
    body: Body | None = None
    form: Form | None = None
    session: bool = False  # refused without a live session
    session_with: str | None = None  # the same, but only with this query parameter
    index_backed: bool = False
    paged: bool = False

    @property
    def kept_while_index_stands(self) -> bool:
        """Its answers are the index's alone: they have an etag, and serve all callers of the block."""
        return self.index_backed and self.body is None and not self.session


def malformed(*codes: str | None) -> tuple[Reply, ...]:
    return tuple(Reply(400, code) for code in (None, *codes))


INDEX: Final = (Reply(503, "not_ready"),)
"""Every index-backed route."""

CHAIN: Final = (Reply(503, "chain_unreachable"), Reply(503, "rate_limited"))
"""Every route that reads the chain, beside the code of its read."""

RELAY: Final = (
    *CHAIN,
    Reply(429, "busy"),
    Reply(503, "relayer_funds"),
    Reply(503, "nonce_conflict"),
    Reply(503, "rpc_internal"),
    Reply(503, "endpoint_refused"),
    Reply(503, "relay_queue_full"),
    Reply(503, "relay_queue_timeout"),
    Reply(504, "transaction hash"),
)
"""Every route that relays."""

STORE: Final = (Reply(503, "store_unavailable"), Reply(503, "store_rejected"))
"""Every route that stores."""


PAGE: Final = {
    "limit": Parameter(Decimal(32, 1, 1000), "at most so many (default 100)"),
    "offset": Parameter(Decimal(32, 0, 1_000_000), "after so many (default 0)"),
}
"""The parameters of every paged route."""
