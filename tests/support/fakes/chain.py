"""A chain in memory that answers JSON-RPC, with blocks of events, forks, and real hashes, links and filters."""

import json
from typing import Any

import attrs

from common.address_book import AddressBook, TokenDomain
from common.keccak import keccak256
from coordinatord.chain.contracts.contract_events import Event
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.evidence import bloom_mask
from tests.support.fakes.event_logs import REGISTRIES, log_of
from tests.support.fakes.history import GENESIS
from tests.support.fakes.rpc_node import RpcFault, RpcNode

CHAIN_ID = 31337
BOOK = AddressBook(
    chain_id=CHAIN_ID,
    deploy_block=1,
    job_registry=b"\x11" * 20,
    provider_registry=b"\x22" * 20,
    ask_registry=b"\x33" * 20,
    paytoken=b"\x44" * 20,
    payment_token_decimals=6,
    token_domain=TokenDomain("Token", "1"),
)
DECODER = LogDecoder(BOOK)
ADDRESSES = dict(zip(REGISTRIES, DECODER.addresses, strict=True))


@attrs.frozen
class Block:
    header: dict[str, Any]
    logs: list[dict[str, Any]]


@attrs.define
class FakeChain(RpcNode):
    blocks: list[Block] = attrs.field(factory=list)
    asked: list[tuple[str, Any]] = attrs.field(factory=list)
    salt: int = 0

    def __attrs_post_init__(self) -> None:
        self.mine()  # block 0

    @property
    def height(self) -> int:
        return len(self.blocks) - 1

    def mine(self, *events: Event) -> None:
        number = len(self.blocks)
        parent = self.blocks[-1].header["hash"] if self.blocks else "0x" + "00" * 32
        logs = [log_of(event, ADDRESSES) for event in events]
        block_hash = "0x" + keccak256(json.dumps([parent, number, self.salt, logs]).encode()).hex()
        bloom = 0
        for index, log in enumerate(logs):
            log |= {"blockNumber": hex(number), "blockHash": block_hash, "logIndex": hex(index), "removed": False}
            bloom |= bloom_mask(log["address"])
        header = {
            "number": hex(number),
            "hash": block_hash,
            "parentHash": parent,
            "timestamp": hex(GENESIS + number),
            "logsBloom": f"0x{bloom:0512x}",
        }
        self.blocks.append(Block(header, logs))

    def fork(self, height: int) -> None:
        """Drop the blocks above `height`. Blocks mined afterwards differ from the dropped ones."""
        del self.blocks[height + 1 :]
        self.salt += 1

    def answer(self, method: str, params: list[Any]) -> Any:
        self.asked.append((method, params))
        match method, params:
            case "eth_chainId", _:
                return hex(CHAIN_ID)
            case "eth_blockNumber", _:
                return hex(self.height)
            case "eth_getBlockByNumber", ["latest", _]:
                return self.blocks[-1].header
            case "eth_getBlockByNumber", [number, _]:
                return self.blocks[int(number, 16)].header if int(number, 16) <= self.height else None
            case "eth_getLogs", [{"blockHash": block_hash}]:
                return self._block(block_hash).logs
            case "eth_getLogs", [{"fromBlock": first, "toBlock": last}]:
                stretch = self.blocks[int(first, 16) : int(last, 16) + 1]
                return [log for block in stretch for log in block.logs]
            case "eth_getBlockReceipts", [block_hash]:
                return [{"logs": self._block(block_hash).logs}]
        return RpcFault({"code": -32601, "message": "method not found"})

    def _block(self, block_hash: str) -> Block:
        return next(block for block in self.blocks if block.header["hash"] == block_hash)
