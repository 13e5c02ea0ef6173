"""The market's history as the chain has it: every event of the contracts, in order, with its block's time.

This module shares no code with coordinatord. eth_abi decodes events from the contracts' interfaces, so a bug in the
indexer cannot hide itself.

log = await read_market_log(rpc_url, address_book)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
import eth_abi
import httpx
from eth_utils.crypto import keccak

from common.address_book import AddressBook
from common.artifacts import load_artifact

_CALLS_PER_REQUEST: Final = 100
_PAUSE_S: Final = 30  # longer than the faults that move the chain's clock forward


@attrs.frozen
class Told:
    """A decoded event: name, fields by name, position in the chain, and the hash of its transaction."""

    name: str
    values: Mapping[str, Any]
    block: int
    place: int  # log index within the block
    time: int  # block timestamp
    transaction: str


@attrs.frozen
class MarketLog:
    """`events`: events of the three registries. `transfers`: all transfers of the payment token. `head` and `time`: the
    latest block. `pauses`: times of blocks between which nothing could be mined for half a minute or more, as after a
    deep reorg."""

    events: Sequence[Told]
    transfers: Sequence[Told]
    head: int
    time: int
    pauses: Sequence[tuple[int, int]] = ()

    def named(self, *names: str) -> Iterator[Told]:
        return (event for event in self.events if event.name in names)


@attrs.frozen
class Node:
    """Plain JSON-RPC client."""

    url: str
    http: httpx.AsyncClient

    async def call(self, method: str, *params: Any) -> Any:
        return (await self.calls([(method, params)]))[0]

    async def calls(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        results: list[Any] = []
        for start in range(0, len(calls), _CALLS_PER_REQUEST):
            body = [
                {"jsonrpc": "2.0", "id": n, "method": method, "params": list(params)}
                for n, (method, params) in enumerate(calls[start : start + _CALLS_PER_REQUEST])
            ]
            answers = {answer["id"]: answer for answer in (await self.http.post(self.url, json=body)).json()}
            for n in range(len(body)):
                if "error" in answers[n]:
                    raise RuntimeError(f"the node refuses {body[n]['method']}: {answers[n]['error']}")
                results.append(answers[n]["result"])
        return results


def node_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=120)


async def read_market_log(rpc_url: str, book: AddressBook, since: int | None = None) -> MarketLog:
    """Read the log from block `since` on, or the whole log. The chain may not be reorganised during the call."""
    registries = {
        book.job_registry: _decoders("JobRegistry"),
        book.provider_registry: _decoders("ProviderRegistry"),
        book.ask_registry: _decoders("AskRegistry"),
    }
    async with node_client() as http:
        node = Node(rpc_url, http)
        head = int(await node.call("eth_blockNumber"), 16)
        first = book.deploy_block if since is None else since
        numbers = range(min(first, head), head + 1)
        headers = await node.calls([("eth_getBlockByNumber", (hex(number), False)) for number in numbers])
        times = {number: int(header["timestamp"], 16) for number, header in zip(numbers, headers, strict=True)}
        told = await _logs(node, first, registries, times)
        # The token may have more events than this interface. Only transfers are read.
        transfers = await _logs(node, first, {book.paytoken: _decoders("DevToken")}, times)
    pauses = [(before, after) for before, after in pairwise(times.values()) if after - before >= _PAUSE_S]
    return MarketLog(told, [one for one in transfers if one.name == "Transfer"], head, times[head], pauses)


_Decoders = dict[str, "_Event"]


async def _logs(node: Node, first: int, contracts: Mapping[bytes, _Decoders], times: Mapping[int, int]) -> list[Told]:
    query = {
        "fromBlock": hex(first),
        "toBlock": hex(max(times)),
        "address": ["0x" + address.hex() for address in contracts],
    }
    logs = await node.call("eth_getLogs", query)
    return sorted(_told(logs, contracts, times), key=lambda one: (one.block, one.place))


def _told(
    logs: Iterable[Mapping[str, Any]], contracts: Mapping[bytes, _Decoders], times: Mapping[int, int]
) -> Iterator[Told]:
    for log in logs:
        decoders = contracts[bytes.fromhex(log["address"][2:])]
        if (event := decoders.get(log["topics"][0])) is not None:
            number = int(log["blockNumber"], 16)
            yield Told(
                event.name,
                event.values(log["topics"][1:], log["data"]),
                number,
                int(log["logIndex"], 16),
                times[number],
                log["transactionHash"],
            )


@attrs.frozen
class _Event:
    name: str
    indexed: Sequence[tuple[str, str]]  # name and type
    plain: Sequence[tuple[str, str]]

    def values(self, topics: Sequence[str], data: str) -> dict[str, Any]:
        words = [bytes.fromhex(topic[2:]) for topic in topics]
        values = {name: eth_abi.decode([kind], word)[0] for (name, kind), word in zip(self.indexed, words, strict=True)}
        # Decode as bytes first, because a string on the chain may be invalid UTF-8.
        types = ["bytes" if kind == "string" else kind for _, kind in self.plain]
        for (name, kind), value in zip(self.plain, eth_abi.decode(types, bytes.fromhex(data[2:])), strict=True):
            values[name] = (
                value.decode("utf-8", errors="replace").replace("\0", "\ufffd") if kind == "string" else value
            )
        return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """Convert addresses to bytes, like all other values."""
    return bytes.fromhex(value[2:]) if isinstance(value, str) and value.startswith("0x") and len(value) == 42 else value


def _decoders(contract: str) -> _Decoders:
    """Return decoders by topic 0, built from the interface."""
    found: _Decoders = {}
    for entry in load_artifact(contract).abi:
        if entry["type"] == "event":
            fields = [(field["name"], _type(field), field["indexed"]) for field in entry["inputs"]]
            signature = f"{entry['name']}({','.join(kind for _, kind, _ in fields)})"
            found["0x" + keccak(text=signature).hex()] = _Event(
                entry["name"],
                [(name, kind) for name, kind, indexed in fields if indexed],
                [(name, kind) for name, kind, indexed in fields if not indexed],
            )
    return found


def _type(field: Mapping[str, Any]) -> str:
    kind: str = field["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(_type(one) for one in field['components'])}){kind.removeprefix('tuple')}"
