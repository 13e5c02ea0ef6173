"""A JSON-RPC proxy with faults on demand: a real HTTP server in front of a real node.

    async with rpc_proxy(anvil_url) as proxy:            # proxy.url is the node's URL for the code under test
        with proxy.fault(ErrorAnswer("eth_getLogs", -32005, "limit exceeded")):
            ...                                          # the fault lasts as long as the block
        assert proxy.seen("eth_getLogs") == 3

Faults act on single calls, also inside a batch. `HttpStatus`, `Hang`, `Late`, `Truncate` and `SwallowAnswer` act on the
whole HTTP exchange that contains a matching call. If several faults match a call, the latest wins.

A test can wait for a call of the caller with the URL `proxy.url/NAME`, and kill the caller there (`moment`).

With a `WriteAhead`, the proxy shows every transaction to it before sending the transaction to the node.
"""

import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import anyio.abc
import attrs
import httpx

from tests.support.faults.write_ahead import WriteAhead

Json = Any  # any JSON value
ANY: Final = "*"
_NOBODY_TRUSTED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # upstream is plain HTTP, so load no certificates


@attrs.frozen
class ErrorAnswer:
    """The node answers with a JSON-RPC error."""

    method: str
    code: int
    message: str
    data: Json = None


@attrs.frozen
class Rewrite:
    """Replace the node's result by `change(params, result)`."""

    method: str
    change: Callable[[Sequence[Json], Json], Json]


@attrs.frozen
class RefuseWideRanges:
    """Refuse eth_getLogs over more than `widest` blocks.

    In `message`, `{first}` and `{last}` become a range that works, `{widest}` its width.
    """

    widest: int
    message: str
    code: int = -32000
    method: str = attrs.field(default="eth_getLogs", init=False)

    def refusal(self, params: Sequence[Json]) -> str | None:
        query = params[0]
        if "fromBlock" not in query:
            return None
        first, last = int(query["fromBlock"], 16), int(query["toBlock"], 16)
        if last - first + 1 <= self.widest:
            return None
        return self.message.format(first=hex(first), last=hex(first + self.widest - 1), widest=self.widest)


@attrs.frozen
class RefuseTransactions:
    """Refuse eth_sendRawTransaction for bytes selected by `which`. The node gets the others."""

    which: Callable[[bytes], bool]
    message: str
    code: int = -32000
    method: str = attrs.field(default="eth_sendRawTransaction", init=False)


@attrs.frozen
class HttpStatus:
    """Answer with an HTTP error without a JSON-RPC body."""

    method: str
    status: int
    body: bytes = b"upstream trouble"


@attrs.frozen
class Hang:
    """Send nothing to the node or back."""

    method: str


@attrs.frozen
class Refuse:
    """Close the connection before the node gets the request, as when the node is killed."""

    method: str


@attrs.frozen
class SwallowAnswer:
    """Let the node execute the request, but close the connection before its response."""

    method: str


@attrs.frozen
class Truncate:
    """Close the connection after `keep` bytes of the response."""

    method: str
    keep: float = 0.5


@attrs.frozen
class Late:
    """Send the request to the node once `until` is set."""

    method: str
    until: anyio.Event = attrs.field(factory=anyio.Event)


Fault = (
    ErrorAnswer
    | Rewrite
    | RefuseWideRanges
    | RefuseTransactions
    | HttpStatus
    | Hang
    | Refuse
    | SwallowAnswer
    | Truncate
    | Late
)


def older_head(blocks: int) -> tuple[Rewrite, Rewrite]:
    """Return faults for both head calls that report a head `blocks` behind the real one.

    Only the number is changed. Use `Rewrite` on "eth_getBlockByNumber" for a whole older header.
    """
    return (
        Rewrite("eth_blockNumber", lambda _, number: hex(max(0, int(number, 16) - blocks))),
        Rewrite(
            "eth_getBlockByNumber",
            lambda params, block: (
                {**block, "number": hex(max(0, int(block["number"], 16) - blocks))} if params[0] == "latest" else block
            ),
        ),
    )


def withheld_logs() -> Rewrite:
    """Report no logs."""
    return Rewrite("eth_getLogs", lambda _params, _logs: [])


def logs_of_another_block() -> Rewrite:
    """Report logs with the wrong block."""
    return Rewrite("eth_getLogs", lambda _, logs: [{**log, "blockHash": "0x" + "ab" * 32} for log in logs])


@attrs.frozen
class Moment:
    """One held call of one caller. `met` is set when the call arrives. After `over`, the held call is dropped, because
    the caller has been killed."""

    caller: str
    method: str
    answered: bool
    met: anyio.Event = attrs.field(factory=anyio.Event)
    over: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.define
class RpcProxy:
    url: str
    _upstream: str
    _write_ahead: WriteAhead | None = None
    _faults: list[Fault] = attrs.field(factory=list)
    _seen: Counter[str] = attrs.field(factory=Counter)
    _moments: list[Moment] = attrs.field(factory=list)

    @contextmanager
    def fault(self, *faults: Fault) -> Iterator[None]:
        self._faults.extend(faults)
        try:
            yield
        finally:
            for fault in faults:
                self._faults.remove(fault)

    @contextmanager
    def moment(self, caller: str, method: str, *, answered: bool) -> Iterator[Moment]:
        """Hold the next call of `method` by the caller whose URL ends with this name. Hold it before it reaches the
        node or, with `answered`, after the node has executed it but before the caller gets the response."""
        moment = Moment(caller, method, answered)
        self._moments.append(moment)
        try:
            yield moment
        finally:
            self._moments.remove(moment)
            moment.over.set()

    def seen(self, method: str) -> int:
        """Return the number of calls of `method` so far, including faulty ones."""
        return self._seen[method]

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream, httpx.AsyncClient(trust_env=False, timeout=60, verify=_NOBODY_TRUSTED) as client:
            incoming = _Requests(stream)
            try:
                while (body := await incoming.next_body()) is not None:
                    if not await self._exchange(stream, client, body, incoming.path):
                        return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                return

    async def _exchange(
        self, stream: anyio.abc.SocketStream, client: httpx.AsyncClient, body: bytes, caller: str
    ) -> bool:
        """Answer one request. Return False to close the connection."""
        request = json.loads(body)
        calls = request if isinstance(request, list) else [request]
        self._seen.update(call["method"] for call in calls)
        whole = [self._fault_of(call, (HttpStatus, Hang, Refuse, SwallowAnswer, Truncate, Late)) for call in calls]
        fault = next((found for found in reversed(whole) if found is not None), None)
        match fault:
            case Hang():
                await stream.receive()  # wait until the caller times out and closes
                return False
            case Refuse():
                return False
            case HttpStatus(status=status, body=text):
                await stream.send(_head(status, len(text)) + text)
                return True
            case Late(until=until):
                await until.wait()
        if await self._held(caller, calls, answered=False):
            return False
        answers = await self._answer(client, calls)
        if isinstance(fault, SwallowAnswer) or await self._held(caller, calls, answered=True):
            return False
        reply = json.dumps(answers if isinstance(request, list) else answers[0]).encode()
        if isinstance(fault, Truncate):
            await stream.send(_head(200, len(reply)) + reply[: int(len(reply) * fault.keep)])
            return False
        await stream.send(_head(200, len(reply)) + reply)
        return True

    async def _held(self, caller: str, calls: list[Json], *, answered: bool) -> bool:
        """Hold a call that a test waits for, and return True once its caller is gone."""
        for moment in self._moments:
            wanted = moment.caller == caller and moment.answered == answered
            if wanted and any(call["method"] == moment.method for call in calls):
                moment.met.set()
                await moment.over.wait()
                return True
        return False

    async def _answer(self, client: httpx.AsyncClient, calls: list[Json]) -> list[Json]:
        # Decide only once: a fault may begin or end during the node's call.
        refusals = [self._refusal(call) for call in calls]
        passed = [call for call, refusal in zip(calls, refusals, strict=True) if refusal is None]
        answers: dict[Json, Json] = {}
        if passed:
            await self._watch(passed)
            response = await client.post(self._upstream, json=passed)
            answers = {answer["id"]: answer for answer in response.json()}
        return [
            refusal if refusal is not None else self._rewritten(call, answers[call["id"]])
            for call, refusal in zip(calls, refusals, strict=True)
        ]

    async def _watch(self, calls: list[Json]) -> None:
        raws = [bytes.fromhex(c["params"][0][2:]) for c in calls if c["method"] == "eth_sendRawTransaction"]
        if raws and self._write_ahead is not None:
            await self._write_ahead.before_broadcast(raws)

    def _refusal(self, call: Json) -> Json | None:
        fault = self._fault_of(call, (ErrorAnswer, RefuseWideRanges, RefuseTransactions))
        match fault:
            case RefuseTransactions(which=which, code=code, message=message):
                return _error(call, code, message, None) if which(bytes.fromhex(call["params"][0][2:])) else None
            case ErrorAnswer(code=code, message=message, data=data):
                return _error(call, code, message, data)
            case RefuseWideRanges(code=code):
                refusal = fault.refusal(call["params"])
                return None if refusal is None else _error(call, code, refusal, None)
        return None

    def _rewritten(self, call: Json, answer: Json) -> Json:
        fault = self._fault_of(call, (Rewrite,))
        if isinstance(fault, Rewrite) and answer.get("result") is not None:
            return {**answer, "result": fault.change(call["params"], answer["result"])}
        return answer

    def _fault_of(self, call: Json, kinds: tuple[type, ...]) -> Fault | None:
        return next(
            (f for f in reversed(self._faults) if isinstance(f, kinds) and f.method in (ANY, call["method"])), None
        )


def _error(call: Json, code: int, message: str, data: Json) -> Json:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": call["id"], "error": error}


def _head(status: int, length: int) -> bytes:
    return (f"HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n").encode()


class _Requests:
    """Read request bodies of one connection. Supports only the HTTP that JSON-RPC clients use."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.path = ""  # of the latest request, without the leading slash

    async def next_body(self) -> bytes | None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            try:
                self._buffer += await self._stream.receive()
            except anyio.EndOfStream:
                return None
        head = bytes(self._buffer[:end]).lower().split(b"\r\n")
        self.path = head[0].split(b" ")[1].strip(b"/").decode("ascii")
        length = next(int(line.split(b":")[1]) for line in head if line.startswith(b"content-length:"))
        while len(self._buffer) < end + 4 + length:
            self._buffer += await self._stream.receive()
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        return body


@asynccontextmanager
async def rpc_proxy(upstream: str, write_ahead: WriteAhead | None = None) -> AsyncIterator[RpcProxy]:
    """Serve on a free loopback port until the block ends."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - anyio's, not Django's
    proxy = RpcProxy(f"http://127.0.0.1:{port}", upstream, write_ahead)
    async with listener, anyio.create_task_group() as serving:
        serving.start_soon(listener.serve, proxy.serve)
        yield proxy
        serving.cancel_scope.cancel()
