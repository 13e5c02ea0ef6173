"""Declarations of routes. One declaration reads requests, enforces limits, and is what /openapi.json says."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes

import attrs
import msgspec

from common.api import limits
from common.api.errors import TX_HASH, contract_errors
from common.api.fields import Decimal, Kind, Schema, object_example, object_schema, read_object
from common.api.words import NOTHING
from common.daemon.asgi import RawHeaders, header_values
from common.refusal import Refused
from coordinatord.base.errors import SessionRow
from coordinatord.http.responses import Response
from coordinatord.http.streaming import HeldResponse, StreamedResponse
from coordinatord.storage.database.batched_reads import Snapshot

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


# Which route a path means.
#
# Paths are matched by their raw segments, each decoded once: an encoded slash inside a segment never changes the
# route, and a rest (`{name...}`) may hold slashes either way.

_SLASH: Final = b"/"


@attrs.frozen(slots=True)
class Match:
    """The routes of a path by method, and the texts of its variable segments."""

    routes: dict[str, Route]
    texts: dict[str, str]


@attrs.define(slots=True)
class _Template:
    segments: tuple[str, ...]
    routes: dict[str, Route]
    spelt: tuple[bytes, ...] = attrs.field(init=False)  # the segments as most requests send them

    def __attrs_post_init__(self) -> None:
        self.spelt = tuple(segment.encode() for segment in self.segments)

    def may_begin(self, beginning: tuple[str, ...]) -> bool:
        return all(
            mine.startswith("{") or mine == theirs
            for mine, theirs in zip(self.segments, beginning, strict=False)  # a rest may be all that there is
        )

    def match(self, raw: list[bytes]) -> dict[str, str] | None:
        texts: dict[str, str] = {}
        for n, segment in enumerate(self.segments):
            if segment.endswith("...}"):
                rest = _SLASH.join(raw[n:])
                return {**texts, segment[1:-4]: _decode_segment(rest)} if rest else None
            if n >= len(raw) or not raw[n]:
                return None
            if segment.startswith("{"):
                texts[segment[1:-1]] = _decode_segment(raw[n])
            elif raw[n] != self.spelt[n] and _decode_segment(raw[n]) != segment:
                return None
        return texts if len(raw) == len(self.segments) else None


class Matcher:
    def __init__(self, routes: list[Route]) -> None:
        self._exact: dict[bytes, dict[str, Route]] = {}
        templates: dict[tuple[str, ...], _Template] = {}
        for route in routes:
            segments = tuple(route.path.split("/")[1:])
            if "{" in route.path:
                templates.setdefault(segments, _Template(segments, {})).routes[route.method] = route
            else:
                self._exact.setdefault(route.path.encode(), {})[route.method] = route
        # Fixed segments before variable ones, so that a template never hides a more exact one.
        self._templates = sorted(
            templates.values(), key=lambda t: [(s.endswith("...}"), s.startswith("{"), s) for s in t.segments]
        )
        # Most requests find the few templates that begin as they do; a path spelt another way tries them all.
        self._by_beginning = {
            tuple(segment.encode() for segment in beginning): [t for t in self._templates if t.may_begin(beginning)]
            for beginning in {t.segments[:2] for t in self._templates}
        }

    def match(self, raw_path: bytes) -> Match | None:
        exact = self._exact.get(raw_path)
        if exact is not None:
            return Match(exact, {})
        raw = raw_path.split(_SLASH)[1:]
        for template in self._by_beginning.get(tuple(raw[:2]), self._templates):
            texts = template.match(raw)
            if texts is not None:
                return Match(template.routes, texts)
        return None


def _decode_segment(raw: bytes) -> str:
    """Decoded once; empty for what is no text (or holds a NUL) and therefore names nothing."""
    try:
        text = (unquote_to_bytes(raw) if b"%" in raw else raw).decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text else text


# Query strings: each parameter at most once, an empty value is an absent one, unknown names are left alone.
#
# Unknown names are left alone because clients and proxies add their own; a known name that is misspelt shows in the
# answer, while refusing all others would break every caller with each parameter that is taken away.

_MOST: Final = 64


def read_query(raw: bytes, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters present, each as its declaration reads it."""
    texts = _split(raw) if raw else {}
    values: dict[str, Any] = {}
    faults: list[Refused] = []
    for name, parameter in parameters.items():
        text = texts.get(name, "")
        if text:
            _read_into(values, faults, name, parameter, text)
        elif parameter.required:
            faults.append(Refused(f"{name} is required", name))
    if faults:
        raise Refused.together(faults)
    return values


def _read_into(values: dict[str, Any], faults: list[Refused], name: str, parameter: Parameter, text: str) -> None:
    try:
        values[name] = parameter.kind.read(text, name)
    except Refused as fault:
        faults.append(fault)


def read_headers(headers: RawHeaders, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """The same of request headers that a route declares."""
    values: dict[str, Any] = {}
    faults: list[Refused] = []
    for name, parameter in parameters.items():
        texts = header_values(headers, name.encode())
        if name == "prefer":  # a list by HTTP's rules: several of them are one
            texts = [",".join(texts)]
        if len(texts) > 1:
            faults.append(Refused(f"{name} appears more than once", name))
        elif texts and texts[0]:
            _read_into(values, faults, name, parameter, texts[0])
    if faults:
        raise Refused.together(faults)
    return values


def _split(raw: bytes) -> dict[str, str]:
    pairs = raw.split(b"&")
    if len(pairs) > _MOST:
        raise Refused(f"a query has at most {_MOST} parameters")
    texts: dict[str, str] = {}
    for pair in pairs:
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _decode_query(raw_name), _decode_query(raw_value)
        if name in texts:
            raise Refused(f"{name} appears more than once", name)
        if name:
            texts[name] = value
    return texts


def _decode_query(part: bytes) -> str:
    if part.isalnum():  # as most are: nothing in it stands for anything else
        return part.decode("ascii")
    try:
        text = unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("the query is not UTF-8") from None
    if "\0" in text:
        raise Refused("the query holds a NUL")
    return text


# Pages: cut before their body passes 4 MiB, and saying so.

T = TypeVar("T")

_ENVELOPE: Final = 256  # what surrounds the rows
_encode: Final = msgspec.json.Encoder().encode


def page_of(request: Request) -> tuple[int, int]:
    """(limit, offset)."""
    return request.query.get("limit", limits.DEFAULT_PAGE), request.query.get("offset", 0)


def page(
    request: Request,
    snapshot: Snapshot,
    name: str,
    rows: Iterable[T],
    view: Callable[[T], msgspec.Struct],
    **extra: Any,
) -> Response:
    """The rows under `name`, as many as fit; at least one, so that a reader who goes on gets on."""
    _, offset = page_of(request)
    encoded: list[bytes] = []
    size, cut = _ENVELOPE, False
    for row in rows:
        item = _encode(view(row))
        if encoded and size + len(item) + 1 > limits.PAGE_BYTES:
            cut = True
            break
        encoded.append(item)
        size += len(item) + 1
    listed = msgspec.Raw(b"[" + b",".join(encoded) + b"]")
    body = _encode({**extra, name: listed, "as_of_block": str(snapshot.block_number)})
    headers = [(b"content-type", b"application/json"), (b"x-svc-page-truncated", b"true" if cut else b"false")]
    if cut:
        headers.append((b"x-svc-next-offset", str(offset + len(encoded)).encode()))
    return Response(200, body, tuple(headers), snapshot)
