"""The chain: a real anvil with synchronous calls and simulated block times. Faults of the connection and the chain are
planned: lost, late or refused responses, bytes that the node forgets, reorgs, missing blocks, rising fees, and
transactions of the relayer's account from elsewhere."""

import asyncio
import http.client
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
from eth_account import Account

from common import abi
from common.keccak import keccak256
from common.scalars import hex_of
from coordinatord.base.http_client import NoResponse
from tests.simulation.coordinator.clocks import START
from tests.simulation.coordinator.faults import Faults
from tests.simulation.plan import Fault

BLOCK_SECONDS: Final = 2.0
BASE_FEE: Final = 10**9
_RPC_TIMEOUT_S: Final = 10.0  # of the coordinator
_SEND: Final = "eth_sendRawTransaction"
_BLACKLISTED: Final = abi.selector("blacklisted(address)")
_SET_BLACKLISTED: Final = abi.selector("setBlacklisted(address,bool)")
_HEADERS: Final = {"content-type": "application/json"}
_INSTEAD: Final = {"busy": (429, b""), "gateway": (502, b"<html>Bad Gateway</html>")}
_ERRORS: Final[dict[str, dict[str, Any]]] = {
    "refused": {"error": {"code": -32603, "message": "Internal error"}},
    "known": {"error": {"code": -32000, "message": "already known"}},
    "full": {"error": {"code": -32000, "message": "txpool is full"}},
}


@attrs.frozen
class Token:
    """The payment token, and the account that can blacklist others."""

    address: str
    issuer: str


class Node:
    """JSON-RPC to anvil over one kept connection. Each call blocks the process."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port)

    def raw(self, body: bytes) -> tuple[int, bytes]:
        self._connection.request("POST", "/", body, _HEADERS)
        response = self._connection.getresponse()
        return response.status, response.read()

    def call(self, method: str, *params: object) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = json.loads(self.raw(json.dumps(body).encode())[1])
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def height(self) -> int:
        return int(self.call("eth_blockNumber"), 16)


class SimulatedChain:
    """The simulated chain calls `broadcast` with bytes before the node gets them. `is_live` says if a caller's process
    still lives."""

    def __init__(self, node: Node, faults: Faults, relayers: list[str], seed: object) -> None:
        self.node, self.faults = node, faults
        self.chance = random.Random(f"chain {seed}")
        self.relayers = relayers
        self.broadcast: Callable[[bytes], None] = lambda raw: None
        self.mined: Callable[[], None] = lambda: None
        self.away = self.still = 0  # number of active reasons
        self._loop = asyncio.get_running_loop()

    # --- requests ---

    @asynccontextmanager
    async def open_transport(self, *_: object, **__: object) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
        """Replaces `coordinatord.chain.rpc.client.open_transport`."""
        owner = self.faults.owner()

        async def post(body: bytes) -> tuple[int, bytes]:
            await asyncio.sleep(self.delay())
            if not self.faults.is_live(owner):
                raise NoResponse("this process is no more")
            if self.away:
                await asyncio.sleep(self.chance.choice((0.0, _RPC_TIMEOUT_S)))
                raise NoResponse("the node is away")
            answer = await self._answered(body)
            await asyncio.sleep(self.delay())
            return answer

        yield post

    def delay(self) -> float:
        return self.chance.expovariate(1 / 0.01) if self.chance.random() < 0.9 else self.chance.uniform(0, 1.0)

    async def _answered(self, body: bytes) -> tuple[int, bytes]:
        calls = json.loads(body)
        methods = [call["method"] for call in (calls if isinstance(calls, list) else [calls])]
        fault = self.faults.due("send" if _SEND in methods else "node")
        if fault is None:
            return self._done(body, calls)
        self.faults.trace.add(f"{methods[0]} meets {fault.kind}")
        if fault.kind in ("lost", "hang_after"):
            self._done(body, calls)
        if fault.kind in ("hang", "hang_after"):
            await asyncio.sleep(_RPC_TIMEOUT_S)
        if fault.kind in ("unreached", "lost", "hang", "hang_after"):
            raise NoResponse(fault.kind)
        if fault.kind in _INSTEAD:
            return _INSTEAD[fault.kind]
        if fault.kind == "late":
            await asyncio.sleep(min(fault.seconds, 0.9 * _RPC_TIMEOUT_S))
        if fault.kind in _ERRORS:
            if fault.kind == "known":
                self._done(body, calls)
            return 200, _answers(calls, _ERRORS[fault.kind])
        answer = self._done(body, calls)
        if fault.kind == "forgotten":
            self.node.call("anvil_dropAllTransactions")
        return answer

    def _done(self, body: bytes, calls: Any) -> tuple[int, bytes]:
        for call in calls if isinstance(calls, list) else [calls]:
            if call["method"] == _SEND:
                raw = bytes.fromhex(call["params"][0][2:])
                self.faults.trace.add(f"broadcast {keccak256(raw).hex()[:16]}")
                self.broadcast(raw)
        return self.node.raw(body)

    # --- blocks ---

    async def mine(self) -> None:
        while True:
            await asyncio.sleep(BLOCK_SECONDS)
            if not self.still:
                self._mine(int(START + self._loop.time()))
                self.mined()

    def _mine(self, time: int) -> None:
        self.node.call("evm_setNextBlockTimestamp", time)
        self.node.call("evm_mine")
        block = self.node.call("eth_getBlockByNumber", "latest", False)
        used = len(block["transactions"])
        self.faults.trace.add(f"block {int(block['number'], 16)} at {time - int(START)} holds {used}")

    def reorganise(self, fault: Fault, floor: int) -> None:
        """Replace the last `seconds` blocks. Their transactions return to the pool, all, some or none of them."""
        head = self.node.height()
        depth = min(int(fault.seconds), head - floor)
        if depth < 1:
            return
        blocks = [self.node.call("eth_getBlockByNumber", hex(n), False) for n in range(head - depth + 1, head + 1)]
        raws = [self.node.call("eth_getRawTransactionByHash", h) for block in blocks for h in block["transactions"]]
        self.faults.trace.add(f"reorganisation of {depth} with {len(raws)} transactions, {fault.kind}")
        self.node.call("anvil_rollback", depth)
        if fault.kind == "gone":
            self.node.call("anvil_dropAllTransactions")
        for raw in raws:
            if self._comes_back(fault.kind, raw):
                try:
                    self.node.call(_SEND, raw)
                except RuntimeError as refused:
                    self.faults.trace.add(f"not back: {str(refused)[:60]}")
        if fault.kind != "behind":
            for block in blocks:
                self._mine(int(block["timestamp"], 16))
        self.mined()

    def _comes_back(self, kind: str, raw: str) -> bool:
        """Return whether a transaction returns to the pool. With `some`, all return except those of one relayer, whose
        key several coordinators share."""
        match kind:
            case "some":
                sender = str(Account.recover_transaction(raw)).lower()
                return sender != self.relayers[0].lower()
            case "few":
                return self.chance.random() < 0.5
            case _:
                return kind in ("back", "behind")

    def fees_rise(self) -> None:
        self.node.call("anvil_setNextBlockBaseFeePerGas", hex(self.chance.randint(20, 200) * 10**9))

    def fees_fall(self) -> None:
        self.node.call("anvil_setNextBlockBaseFeePerGas", hex(BASE_FEE))

    def used_outside(self) -> None:
        """Send a foreign transaction from a relayer's account, ahead of its pending ones."""
        account = self.chance.choice(self.relayers)
        self._send(account, {"to": account, "gas": hex(21_000)})

    async def shut_out(self, account: str, token: Token, seconds: float, noisy: float) -> None:
        """Pause payments to this account by the token's issuer for some time. Repeat the pause and its end after each
        reorg until the noisy time is over."""
        until = self._loop.time() + seconds
        while (now := self._loop.time()) < noisy or self._is_refused(account, token):
            wanted = now < min(until, noisy)
            if self._is_refused(account, token) != wanted:
                data = abi.call_data(_SET_BLACKLISTED, abi.address(bytes.fromhex(account[2:])), abi.uint(int(wanted)))
                self._send(token.issuer, {"to": token.address, "data": hex_of(data), "gas": hex(100_000)})
            await asyncio.sleep(BLOCK_SECONDS)

    def _is_refused(self, account: str, token: Token) -> bool:
        data = hex_of(abi.call_data(_BLACKLISTED, abi.address(bytes.fromhex(account[2:]))))
        return bool(int(self.node.call("eth_call", {"to": token.address, "data": data}, "latest"), 16))

    def _send(self, account: str, transaction: dict[str, str]) -> None:
        nonce = self.node.call("eth_getTransactionCount", account, "latest")
        dear = {"maxFeePerGas": hex(10**13), "maxPriorityFeePerGas": hex(10**12)}
        try:
            self.node.call("eth_sendTransaction", {"from": account, "nonce": nonce, **dear, **transaction})
        except RuntimeError as refused:
            self.faults.trace.add(f"outside: {refused}")


def _answers(calls: Any, answer: dict[str, Any]) -> bytes:
    told = [{"jsonrpc": "2.0", "id": call["id"], **answer} for call in (calls if isinstance(calls, list) else [calls])]
    return json.dumps(told if isinstance(calls, list) else told[0]).encode()
