"""Node of the market tool: JSON-RPC, one request at a time, sent again when the node stumbles; its logs and fees."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import attrs
import msgspec
from anyio.from_thread import start_blocking_portal

from common.daemon.process import Fatal
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import open_transport
from coordinatord.chain.rpc.errors import Meaning, RpcError, read_error
from coordinatord.market.contracts import Contract, Event, read_event, topic

_TIMEOUT_SECONDS: Final = 30.0
_ATTEMPTS: Final = 5
_FIRST_PAUSE_SECONDS: Final = 0.25
_ASK_AGAIN: Final = (429, 500, 502, 503, 504)


@attrs.frozen(slots=True)
class RetryingNode:
    """Every method raises Retryable when the node does not answer, RpcError when it answers with an error."""

    _post: Callable[[bytes], tuple[int, bytes]]  # raises NoAnswer
    _url: str = attrs.field(repr=False)  # it may hold a key
    _sleep: Callable[[float], None] = time.sleep

    def request(self, method: str, *params: object) -> Any:
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                return self._once(method, params, last)
            except _Stumbled:
                self._sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last attempt answers or raises")

    def _once(self, method: str, params: tuple[object, ...], last: bool) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        status = 0
        try:
            status, raw = self._post(msgspec.json.encode(body))
            answer = json.loads(raw)
        except NoResponse as error:
            self._stumble(last, str(error))
        except ValueError:
            self._stumble(last or status not in _ASK_AGAIN, f"HTTP {status}, no JSON")
        if not isinstance(answer, Mapping) or ("error" not in answer and "result" not in answer):
            self._stumble(last or status not in _ASK_AGAIN, f"HTTP {status}")
        if answer.get("error") is None:
            return answer.get("result")
        refused = read_error(answer["error"] if isinstance(answer["error"], Mapping) else {"message": answer["error"]})
        if refused.meaning is Meaning.RATE_LIMITED and not last:
            raise _Stumbled
        raise refused

    def _stumble(self, last: bool, how: str) -> NoReturn:
        if not last:
            raise _Stumbled
        host = urlsplit(self._url).netloc.rpartition("@")[2]
        raise Retryable("chain_unreachable", f"the node at {host} does not answer ({how}): try again, or another node")

    # --- the chain ---

    def number(self, method: str, *params: object) -> int:
        return int(self.request(method, *params), 16)

    def chain_id(self) -> int:
        return self.number("eth_chainId")

    def genesis(self) -> str:
        """The hash of block 0; empty for a node that has pruned it."""
        block = self.request("eth_getBlockByNumber", "0x0", False)
        return str(block["hash"]) if block else ""

    def head(self) -> int:
        return self.number("eth_blockNumber")

    def balance(self, account: str) -> int:
        return self.number("eth_getBalance", account, "latest")

    def nonce(self, account: str, block: int | str) -> int:
        return self.number("eth_getTransactionCount", account, hex(block) if isinstance(block, int) else block)

    def code(self, address: str) -> bytes:
        return bytes.fromhex(self.request("eth_getCode", address, "latest")[2:])

    # --- calls ---

    def call(self, to: str, data: bytes, sender: str | None = None, block: int | str = "latest") -> bytes:
        transaction = {"to": to, "data": hex_of(data)} | ({} if sender is None else {"from": sender})
        answer = self.request("eth_call", transaction, hex(block) if isinstance(block, int) else block)
        return bytes.fromhex(answer[2:])

    def read(self, contract: Contract, function: str, *arguments: object) -> tuple[Any, ...]:
        """Answer of a view of one of our contracts; Fatal when something else stands at its address."""
        try:
            data = self.call(contract.address, contract.calldata(function, *arguments))
        except RpcError as error:
            if error.meaning is not Meaning.REVERTED:
                raise
            raise Fatal(f"{contract.address} is no {contract.name}: its {function} reverts") from error
        return contract.answer(function, data)

    # --- transactions ---

    def estimate(self, sender: str, to: str | None, data: bytes) -> int:
        transaction = {"from": sender, "data": hex_of(data)} | ({} if to is None else {"to": to})
        return self.number("eth_estimateGas", transaction)

    def send(self, raw: bytes) -> None:
        """Broadcast signed bytes; that the node has them already is no error."""
        try:
            self.request("eth_sendRawTransaction", hex_of(raw))
        except RpcError as error:
            if error.meaning is not Meaning.ALREADY_KNOWN:
                raise

    def receipt(self, transaction_hash: str) -> Mapping[str, Any] | None:
        receipt = self.request("eth_getTransactionReceipt", transaction_hash)
        # Some nodes answer for a transaction that waits, without a block.
        return receipt if receipt and receipt.get("blockNumber") else None


class _Stumbled(Exception):
    """Asked once more."""


def connect(rpc_url: str) -> AbstractContextManager[RetryingNode]:
    """Node to be asked within a block. Raises Fatal for an address that is not HTTP's."""
    if urlsplit(rpc_url).scheme not in ("http", "https") or not urlsplit(rpc_url).hostname:
        raise Fatal("the RPC endpoint must be an http:// or https:// address")
    return _connected(rpc_url)


@contextmanager
def _connected(rpc_url: str) -> Iterator[RetryingNode]:
    """Over the daemon's own HTTP client, in an event loop beside this thread."""
    transport = open_transport(rpc_url, connections=1, patience=_TIMEOUT_SECONDS)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(transport) as post:
        yield RetryingNode(partial(portal.call, post), rpc_url)


# By contract; a contract's log with another topic is none of an admin's.
_EVENTS: Final = {
    "ProviderRegistry": ("OwnershipTransferred", "RelayerSet", "AllowlistSet", "ModelAllowed"),
    "JobRegistry": ("OwnershipTransferred", "RelayerSet", "ModelSet", "SlaSet"),
    "AskRegistry": ("OwnershipTransferred", "RelayerSet"),
}
_TOO_MUCH: Final = (Meaning.RANGE_TOO_WIDE, Meaning.INTERNAL)


def admin_events(
    node: RetryingNode, registries: Mapping[str, Contract], first: int, last: int, span: int
) -> Iterator[Event]:
    """Events of admins from `first` to `last`, in the order of the chain: mappings can only be listed by them.

    `span`: the widest range of blocks asked for; halved where a node refuses it.
    """
    names = {contract.address.lower(): name for name, contract in registries.items()}
    known = {(name, topic(name, event)): event for name, events in _EVENTS.items() for event in events}
    topics = sorted({hashed for _, hashed in known})
    while first <= last:
        end = min(last, first + span - 1)
        try:
            logs = _logs(node, sorted(names), topics, first, end)
        except RpcError as error:
            if error.meaning not in _TOO_MUCH or span == 1:
                raise
            span = max(1, span // 2)
            continue
        for log in logs:
            name = names[log["address"].lower()]  # a node that answers with others' logs is not believed
            event = known.get((name, log["topics"][0]))
            if event is not None:
                yield read_event(name, event, log)
        first = end + 1


def _logs(node: RetryingNode, addresses: list[str], topics: list[str], first: int, last: int) -> list[dict[str, Any]]:
    asked = {"address": addresses, "topics": [topics], "fromBlock": hex(first), "toBlock": hex(last)}
    logs = node.request("eth_getLogs", asked)
    return sorted(logs, key=lambda log: (int(log["blockNumber"], 16), int(log["logIndex"], 16)))
