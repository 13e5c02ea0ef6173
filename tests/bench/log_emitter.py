"""Fill a chain with `JobPosted` logs at the job registry's address, hundreds per transaction.

The contract code writes its input: topics and data equal the registry's event byte for byte, with payloads of the usual
lengths. It skips only the checks of a real post, which would take minutes. Calldata: count (32) ‖ first id (32) ‖ topic
0 (32) ‖ owner (32) ‖ model id (32) ‖ data of the log. Each log's job id is the keccak of its number.
"""

from typing import Any, Final

import httpx
from eth_abi.abi import encode

from common.abi import topic
from common.scalars import hex_of

EMITTER: Final = bytes.fromhex(
    "60a03603"  # size of the log's data
    "8060a0600037"  # copied to memory at 0
    "600035"  # count
    "5b"  # 0x0d: loop
    "8015603657"  # leave at 0
    "60019003"
    "608035606035"  # model id, owner
    "826020350161080052602061080020"  # keccak(first id + count)
    "604035"  # topic 0
    "856000a4"  # log it
    "600d56"
    "5b00"  # 0x36: done
)
_POSTED: Final = (
    "JobPosted(bytes32,address,uint32,bytes32,uint32,uint128,uint128,uint32,uint32,uint32,uint64,uint16,uint128,"
    "string,bytes)"
)
_DATA: Final = ["bytes32", "uint32", "uint128", "uint128", "uint32", "uint32", "uint32", "uint64", "uint16", "uint128"]


class Filler:
    """One account's transactions to the emitter. Each gets a block."""

    def __init__(self, rpc_url: str, registry: bytes, sender: str) -> None:
        self._client = httpx.Client(base_url=rpc_url, trust_env=False, timeout=60)
        self._registry = hex_of(registry)
        self._sender = sender
        self._posted = 0

    def __enter__(self) -> "Filler":
        self._call("evm_setAutomine", False)
        self._call("anvil_setCode", self._registry, hex_of(EMITTER))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def mine(self, blocks: int, logs_per_block: int) -> None:
        for _ in range(blocks):
            self._call("eth_sendTransaction", self._transaction(logs_per_block))
            self._call("evm_mine")

    def height(self) -> int:
        return int(self._call("eth_blockNumber"), 16)

    def _transaction(self, logs: int) -> dict[str, str]:
        numbers = logs.to_bytes(32, "big") + self._posted.to_bytes(32, "big")
        self._posted += logs
        model, owner = 1 + self._posted % 16, (self._posted % 5000).to_bytes(32, "big")
        values = [b"\xcc" * 32, 3600, 2_000_000, 6_000_000, 1200, 4096, 0, 1_800_000_000, 250, 2000]
        cid, signature = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy", b"\x1b" * 65
        data = encode([*_DATA, "string", "bytes"], [*values, cid, signature])
        return {
            "from": self._sender,
            "to": self._registry,
            "gas": hex(200_000 + 20_000 * logs),
            "data": hex_of(numbers + topic(_POSTED) + owner + model.to_bytes(32, "big") + data),
        }

    def _call(self, method: str, *params: object) -> Any:
        answer = self._client.post("", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]
