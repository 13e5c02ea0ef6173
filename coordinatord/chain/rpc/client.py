"""JSON-RPC over HTTP: single calls and batches, and reads of contracts by them.

Two ways to fail, kept apart: `Retryable` when no answer came (nothing is known of what the node did), `RpcError` when
the node answered with an error. Each call names the code that a caller of ours would see if it gets no answer.
"""

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import attrs
import msgspec

from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse, open_http
from coordinatord.base.metrics import rpc_requests
from coordinatord.chain.rpc.errors import Meaning, RpcError, read_error

# A request's body to the HTTP status and the answer's body. Raises NoAnswer, and nothing else.
Transport = Callable[[bytes], Awaitable[tuple[int, bytes]]]

_READ_AHEAD: Final = 1 << 20  # bytes; a page of logs is larger than the default by far, and would be read haltingly
_HEADERS: Final = {"content-type": "application/json"}
# A page of logs is megabytes, and the indexer asks for some thousand events at a time.
_LONGEST_ANSWER: Final = 128 << 20


@asynccontextmanager
async def open_transport(url: str, *, connections: int, patience: float) -> AsyncIterator[Transport]:
    """JSON-RPC endpoint over a few kept connections. `patience`: seconds to get a connection, to send a request, and
    between any two reads of an answer."""
    async with open_http(connections=connections, patience=patience, read_bufsize=_READ_AHEAD) as http:

        async def post(body: bytes) -> tuple[int, bytes]:
            async with http("POST", url, _HEADERS, (body,)) as response:
                return response.status, await response.read(_LONGEST_ANSWER)

        yield post


T = TypeVar("T")
Json = object  # what msgspec.json.decode yields: dict, list, str, int, float, bool, None


@attrs.frozen(slots=True)
class RpcCall:
    method: str
    params: tuple[Json, ...] = ()


CALLS_PER_REQUEST: Final = 100  # what the common providers take in one request
_REQUEST_BYTES: Final = 2_000_000  # and how much of it: hex is twice what it stands for
# Garbled text and a depth that nobody means are answers of another shape like any other.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONGEST_QUANTITY: Final = 66  # 0x and 256 bits
_NULL = msgspec.Raw(b"null")


class _RpcAnswer(msgspec.Struct):
    id: int | None = None
    result: msgspec.Raw = _NULL  # never a union: msgspec would validate the bytes instead of leaving them
    error: dict[str, Json] | None = None


class _Result(msgspec.Struct, Generic[T]):
    result: T
    error: dict[str, Json] | None = None  # some nodes send a null result beside it


_ONE = msgspec.json.Decoder(_RpcAnswer)
_MANY = msgspec.json.Decoder(list[_RpcAnswer])
_ENCODER = msgspec.json.Encoder()


class Rpc:
    """One endpoint. Safe for any number of tasks."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ids = itertools.count(1)

    @property
    def others(self) -> Sequence["Rpc"]:
        """Further nodes of the chain that are fit to be asked: what is found here is held against them, and what is
        sent goes to all. None where there is one node, or where each request goes to whichever is fit."""
        return ()

    @asynccontextmanager
    async def decision(self, *, leads: bool = False) -> AsyncIterator[None]:
        """Block in which one node answers every request; see `chain/nodes.py`."""
        yield

    async def call(self, method: str, *params: Json) -> Json:
        """The result, decoded. Raises RpcError or Retryable."""
        return await self.call_as(object, method, *params)

    async def call_as(self, kind: type[T], method: str, *params: Json) -> T:
        """The result, decoded into `kind`: an answer of another shape is the node's fault."""
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        raw = await self._post(_ENCODER.encode(body), method)
        try:
            # A page of logs is megabytes: read once, straight into its type.
            direct = msgspec.json.decode(raw, type=_Result[kind])  # type: ignore[valid-type] # kind is a value
        except _UNREADABLE:
            return _result(_answer(raw, method), kind, method)
        if direct.error is not None:
            raise read_error(direct.error)
        return direct.result

    async def batch(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw | RpcError]:
        """All calls, answered in order; an error of one is a value. Decode with `decode_result`.

        In one request up to CALLS_PER_REQUEST of usual size, else in several, one after the other.
        """
        requests: list[dict[int, bytes]] = []
        size = 0
        for call, n in zip(calls, self._ids, strict=False):
            encoded = _ENCODER.encode({"jsonrpc": "2.0", "id": n, "method": call.method, "params": call.params})
            if not requests or len(requests[-1]) == CALLS_PER_REQUEST or size + len(encoded) > _REQUEST_BYTES:
                requests.append({})
                size = 0
            requests[-1][n] = encoded
            size += len(encoded)
        results: list[msgspec.Raw | RpcError] = []
        for request in requests:
            results += await self._batch(request, f"a batch of {calls[0].method}")
        return results

    async def _batch(self, calls: Mapping[int, bytes], what: str) -> list[msgspec.Raw | RpcError]:
        """Encoded calls by their ids, in one request."""
        raw = await self._post(b"[" + b",".join(calls.values()) + b"]", what)
        try:
            answers = _MANY.decode(raw)
        except _UNREADABLE as broken:
            raise _refused_batch(raw, what) from broken
        by_id = {answer.id: answer for answer in answers}
        results: list[msgspec.Raw | RpcError] = []
        for n in calls:
            answer = by_id.get(n)
            if answer is None:
                raise _no_answer(what, "it left a call of the batch unanswered")
            results.append(read_error(answer.error) if answer.error is not None else answer.result)
        return results

    async def _post(self, body: bytes, what: str) -> bytes:
        started = time.perf_counter()
        outcome = "given_up"  # a cancelled request
        try:
            answer = await self._exchange(body, what)
            outcome = "answered"
        except Retryable as error:
            outcome = error.code or error.kind
            raise
        finally:
            rpc_requests.labels(outcome).observe(time.perf_counter() - started)
        return answer

    async def _exchange(self, body: bytes, what: str) -> bytes:
        try:
            status, answer = await self._transport(body)
        except NoResponse as error:
            raise _no_answer(what, str(error)) from error
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Retryable("relay_unavailable", f"the RPC endpoint limits our requests ({what})", "rate_limited")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise Retryable("relay_unavailable", f"the RPC endpoint refuses us ({what})", "endpoint_refused")
        # Some nodes put a JSON-RPC error under a 4xx or 5xx: the body decides when it parses, the status when not.
        if status >= HTTPStatus.BAD_REQUEST and answer.lstrip()[:1] not in (b"{", b"["):
            raise _no_answer(what, f"HTTP {status}")
        return answer


def decode_result(raw: msgspec.Raw, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE as broken:
        raise _no_answer(what, "its answer has another shape than the method's") from broken


def retryable_of(error: RpcError, what: str) -> Retryable:
    """Retryable for a node's error that is no answer, in the specification's classes."""
    match error.meaning:
        case Meaning.RATE_LIMITED:
            return Retryable("relay_unavailable", f"the RPC endpoint limits our requests ({what})", "rate_limited")
        case Meaning.REFUSED:
            return Retryable("relay_unavailable", f"the RPC endpoint refuses {what}", "endpoint_refused")
        case Meaning.NO_FUNDS:
            return Retryable("relay_unavailable", "the relayer is out of native funds", "relayer_funds")
        case Meaning.NONCE_TOO_LOW | Meaning.NONCE_TOO_HIGH | Meaning.ALREADY_KNOWN | Meaning.UNDERPRICED:
            return Retryable("relay_unavailable", "the relayer lost a nonce race", "nonce_conflict")
        case _:
            return Retryable("relay_unavailable", f"the RPC endpoint failed at {what}", "rpc_internal")


def quantity(value: Json) -> int:
    """A 0x-quantity."""
    if not isinstance(value, str) or not value.startswith("0x") or len(value) > _LONGEST_QUANTITY:
        raise _no_answer("a quantity", "its answer has another shape than the method's")
    try:
        return int(value, 16)
    except ValueError as broken:
        raise _no_answer("a quantity", "its answer has another shape than the method's") from broken


def _answer(raw: bytes, method: str) -> _RpcAnswer:
    try:
        return _ONE.decode(raw)
    except _UNREADABLE as broken:
        raise _no_answer(method, "its answer is not JSON-RPC") from broken


def _result(answer: _RpcAnswer, kind: type[T], method: str) -> T:
    if answer.error is not None:
        raise read_error(answer.error)
    return decode_result(answer.result, kind, method)


def _refused_batch(raw: bytes, what: str) -> Exception:
    try:
        answer = _ONE.decode(raw)
    except _UNREADABLE:
        return _no_answer(what, "its answer is not JSON-RPC")
    return read_error(answer.error) if answer.error is not None else _no_answer(what, "it answered one for many")


def _no_answer(what: str, why: str) -> Retryable:
    return Retryable("chain_unreachable", f"the RPC endpoint did not answer {what}: {why}")


@asynccontextmanager
async def open_rpc(url: str, *, connections: int = 8, patience: float = 10.0) -> AsyncIterator[Rpc]:
    """`patience`: seconds to get a connection, to send a request, and between any two reads of an answer."""
    async with open_transport(url, connections=connections, patience=patience) as transport:
        yield Rpc(transport)
