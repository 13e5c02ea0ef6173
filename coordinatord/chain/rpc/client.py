"""JSON-RPC over HTTP: single calls and batches.

`Retryable` means that no usable answer arrived, so the effect on the node is unknown. `RpcError` means that the node
answered with an error.
"""

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import anyio
import attrs
import msgspec

from common.strict_json import DECODE_ERRORS
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse, RejectedResponse, open_http
from coordinatord.base.metrics import rpc_requests
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind, classify_error

# Sends a request body. Returns the HTTP status and the response body. Raises only NoResponse.
Transport = Callable[[bytes], Awaitable[tuple[int, bytes]]]

# A page of logs far exceeds the default buffer, which would pause and resume reading many times.
_READ_BUFFER_BYTES: Final = 1 << 20
_HEADERS: Final = {"content-type": "application/json"}
# A page of logs takes megabytes: the indexer requests several thousand events at a time.
_MAX_ANSWER_BYTES: Final = 128 << 20
# Time to read a whole answer, in units of `timeout_s`. Without this limit, a node could send one byte at a time for
# ever.
_READ_TIMEOUT_FACTOR: Final = 6
# An answer may have this many commas, and one more per `_MIN_BYTES_PER_COMMA`. Decoding `[[],[],…` takes 25 times its
# size in memory. Logs have a comma per 40 bytes, and no method's answers have more than one per 16.
_ALWAYS_ALLOWED_COMMAS: Final = 1000
_MIN_BYTES_PER_COMMA: Final = 16
# Batch size that common RPC services accept.
CALLS_PER_REQUEST: Final = 100
# Limit on the bytes of a batch. Binary values take two bytes of hex for each byte.
_MAX_REQUEST_BYTES: Final = 2_000_000
# 0x and 256 bits.
_MAX_QUANTITY_CHARS: Final = 66


@asynccontextmanager
async def open_transport(url: str, *, connections: int, timeout_s: float) -> AsyncIterator[Transport]:
    """Open a JSON-RPC endpoint over a small pool of persistent connections.

    `timeout_s` applies to connecting, to sending a request and between two reads of an answer.
    """
    async with open_http(connections=connections, timeout_s=timeout_s, read_bufsize=_READ_BUFFER_BYTES) as http:

        async def post(body: bytes) -> tuple[int, bytes]:
            async with http("POST", url, _HEADERS, (body,)) as response:
                try:
                    with anyio.fail_after(_READ_TIMEOUT_FACTOR * timeout_s):
                        answer = await response.read(_MAX_ANSWER_BYTES)
                except TimeoutError as error:
                    raise NoResponse(f"the answer took longer than {_READ_TIMEOUT_FACTOR * timeout_s:g} s") from error
                if answer.count(b",") > _ALWAYS_ALLOWED_COMMAS + len(answer) // _MIN_BYTES_PER_COMMA:
                    raise RejectedResponse("the answer has more values than any method returns")
                return response.status, answer

        yield post


T = TypeVar("T")
# Result of msgspec.json.decode: dict, list, str, int, float, bool or None.
Json = object


@attrs.frozen(slots=True)
class RpcCall:
    method: str
    params: tuple[Json, ...] = ()


_NULL_RESULT = msgspec.Raw(b"null")


class _RpcAnswer(msgspec.Struct):
    id: int | None = None
    # Must not be a union: msgspec would then validate the bytes instead of keeping them undecoded.
    result: msgspec.Raw = _NULL_RESULT
    error: dict[str, Json] | None = None


class _Result(msgspec.Struct, Generic[T]):
    result: T
    # Some nodes send a null result together with the error.
    error: dict[str, Json] | None = None


_ANSWER_DECODER = msgspec.json.Decoder(_RpcAnswer)
_ANSWERS_DECODER = msgspec.json.Decoder(list[_RpcAnswer])
_ENCODER = msgspec.json.Encoder()


class Rpc:
    """One JSON-RPC endpoint. Any number of tasks may use it concurrently."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ids = itertools.count(1)

    @property
    def other_nodes(self) -> Sequence["Rpc"]:
        """Other nodes of the chain that are fit (see `Nodes.fit_nodes`). Results are checked against them, and
        transactions are also sent to them.

        Empty if only one node is configured, or if each request may go to any fit node.
        """
        return ()

    @asynccontextmanager
    async def decision(self, *, may_change_node: bool = False) -> AsyncIterator[None]:
        """Send every request made inside the `async with` statement to the same node. `PinnedRpc` explains
        `may_change_node`. A single endpoint ignores it."""
        yield

    async def call(self, method: str, *params: Json) -> Json:
        """Return the decoded result. Raise RpcError or Retryable."""
        return await self.call_as(object, method, *params)

    async def call_as(self, result_type: type[T], method: str, *params: Json) -> T:
        """Return the result decoded into `result_type`. Raise Retryable for an answer of another shape."""
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        raw = await self._post(_ENCODER.encode(body), method)
        try:
            # A page of logs takes megabytes, so decode it only once, straight into its type.
            direct = msgspec.json.decode(raw, type=_Result[result_type])  # type: ignore[valid-type] # result_type is a value
        except DECODE_ERRORS:
            return _unwrap_result(_decode_answer(raw, method), result_type, method)
        if direct.error is not None:
            raise classify_error(direct.error)
        return direct.result

    async def batch(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw | RpcError]:
        """Return the answers in order of the calls, with errors as values. Decode an answer with `decode_result`.

        Up to CALLS_PER_REQUEST calls of usual size take one request. More calls take several requests, one after
        another.
        """
        requests: list[dict[int, bytes]] = []
        size = 0
        for call, n in zip(calls, self._ids, strict=False):
            encoded = _ENCODER.encode({"jsonrpc": "2.0", "id": n, "method": call.method, "params": call.params})
            if not requests or len(requests[-1]) == CALLS_PER_REQUEST or size + len(encoded) > _MAX_REQUEST_BYTES:
                requests.append({})
                size = 0
            requests[-1][n] = encoded
            size += len(encoded)
        results: list[msgspec.Raw | RpcError] = []
        for request in requests:
            results += await self._batch(request, f"a batch of {calls[0].method}")
        return results

    async def _batch(self, calls: Mapping[int, bytes], request_name: str) -> list[msgspec.Raw | RpcError]:
        """Send encoded calls, keyed by id, in one request."""
        raw = await self._post(b"[" + b",".join(calls.values()) + b"]", request_name)
        try:
            answers = _ANSWERS_DECODER.decode(raw)
        except DECODE_ERRORS as broken:
            raise _batch_error(raw, request_name) from broken
        by_id = {answer.id: answer for answer in answers}
        results: list[msgspec.Raw | RpcError] = []
        for n in calls:
            answer = by_id.get(n)
            if answer is None:
                raise _unusable_answer_error(request_name, "a call of the batch has no answer")
            results.append(classify_error(answer.error) if answer.error is not None else answer.result)
        return results

    async def _post(self, body: bytes, request_name: str) -> bytes:
        started = time.perf_counter()
        # Outcome of a cancelled request.
        outcome = "given_up"
        try:
            answer = await self._exchange(body, request_name)
            outcome = "answered"
        except Retryable as error:
            outcome = error.code or error.kind
            raise
        finally:
            rpc_requests.labels(outcome).observe(time.perf_counter() - started)
        return answer

    async def _exchange(self, body: bytes, request_name: str) -> bytes:
        try:
            status, answer = await self._transport(body)
        except NoResponse as error:
            raise _unusable_answer_error(request_name, str(error)) from error
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Retryable(
                "relay_unavailable", f"the RPC endpoint rate-limits requests ({request_name})", "rate_limited"
            )
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise Retryable(
                "relay_unavailable", f"the RPC endpoint rejects requests ({request_name})", "endpoint_refused"
            )
        # Some nodes send a JSON-RPC error with status 4xx or 5xx. Use the body if it looks like JSON, otherwise the
        # status.
        if status >= HTTPStatus.BAD_REQUEST and answer.lstrip()[:1] not in (b"{", b"["):
            raise _unusable_answer_error(request_name, f"HTTP {status}")
        return answer


def decode_result(raw: msgspec.Raw, result_type: type[T], request_name: str) -> T:
    try:
        return msgspec.json.decode(raw, type=result_type)
    except DECODE_ERRORS as broken:
        raise _unusable_answer_error(
            request_name, "the answer does not have the shape that the method returns"
        ) from broken


def to_retryable(error: RpcError, request_name: str) -> Retryable:
    """Return the Retryable for a node's error, with the error type and code that the API specification defines."""
    match error.kind:
        case RpcErrorKind.RATE_LIMITED:
            return Retryable(
                "relay_unavailable", f"the RPC endpoint rate-limits requests ({request_name})", "rate_limited"
            )
        case RpcErrorKind.REFUSED:
            return Retryable("relay_unavailable", f"the RPC endpoint refuses {request_name}", "endpoint_refused")
        case RpcErrorKind.NO_FUNDS:
            return Retryable(
                "relay_unavailable",
                "the coordinator's account is out of native coin; try again later",
                "relayer_funds",
            )
        case (
            RpcErrorKind.NONCE_TOO_LOW
            | RpcErrorKind.NONCE_TOO_HIGH
            | RpcErrorKind.ALREADY_KNOWN
            | RpcErrorKind.UNDERPRICED
        ):
            return Retryable(
                "relay_unavailable", "the coordinator's account lost a race for a nonce; try again", "nonce_conflict"
            )
        case _:
            return Retryable(
                "relay_unavailable", f"the RPC endpoint answered {request_name} with an error", "rpc_internal"
            )


def decode_quantity(value: Json) -> int:
    """Decode a 0x-quantity."""
    if not isinstance(value, str) or not value.startswith("0x") or len(value) > _MAX_QUANTITY_CHARS:
        raise _unusable_answer_error("a quantity", "the answer does not have the shape that the method returns")
    try:
        return int(value, 16)
    except ValueError as broken:
        raise _unusable_answer_error(
            "a quantity", "the answer does not have the shape that the method returns"
        ) from broken


def _decode_answer(raw: bytes, method: str) -> _RpcAnswer:
    try:
        return _ANSWER_DECODER.decode(raw)
    except DECODE_ERRORS as broken:
        raise _unusable_answer_error(method, "the answer is not JSON-RPC") from broken


def _unwrap_result(answer: _RpcAnswer, result_type: type[T], method: str) -> T:
    if answer.error is not None:
        raise classify_error(answer.error)
    return decode_result(answer.result, result_type, method)


def _batch_error(raw: bytes, request_name: str) -> Exception:
    try:
        answer = _ANSWER_DECODER.decode(raw)
    except DECODE_ERRORS:
        return _unusable_answer_error(request_name, "the answer is not JSON-RPC")
    return (
        classify_error(answer.error)
        if answer.error is not None
        else _unusable_answer_error(request_name, "the batch got a single answer")
    )


def _unusable_answer_error(request_name: str, reason: str) -> Retryable:
    return Retryable("chain_unreachable", f"no usable answer from the RPC endpoint to {request_name}: {reason}")


@asynccontextmanager
async def open_rpc(url: str, *, connections: int = 8, timeout_s: float = 10.0) -> AsyncIterator[Rpc]:
    """Open one endpoint. `timeout_s` applies to connecting, to sending and between two reads."""
    async with open_transport(url, connections=connections, timeout_s=timeout_s) as transport:
        yield Rpc(transport)
