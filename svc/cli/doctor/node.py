"""A node of the chain, asked the few things that only it knows: balances, code, the contracts' signing domains."""

from typing import Any, Final

import attrs
import httpx

from common.keccak import keccak256
from svc.wire.answers import opened, whole

_WORD: Final = 32
_LONGEST_ANSWER: Final = 1 << 20  # a block without its transactions has some hundred KiB


class NodeTrouble(Exception):
    """The node did not answer, or not with what was asked for."""


@attrs.frozen
class Node:
    url: str
    http: httpx.AsyncClient

    async def chain_id(self) -> int:
        return _number(await self._call("eth_chainId"))

    async def has_code(self, address: bytes) -> bool:
        return await self._call("eth_getCode", "0x" + address.hex(), "latest") not in ("0x", "0x0")

    async def balance(self, token: bytes, owner: bytes) -> int:
        return int.from_bytes(await self._view(token, "balanceOf(address)", bytes(12) + owner), "big")

    async def domain_separator(self, contract: bytes) -> bytes:
        return await self._view(contract, "DOMAIN_SEPARATOR()")

    async def head_time(self) -> int:
        """Unix seconds of the latest block."""
        block = await self._call("eth_getBlockByNumber", "latest", False)
        if not isinstance(block, dict):
            raise NodeTrouble(f"{self.url} has no latest block")
        return _number(block.get("timestamp"))

    async def _view(self, contract: bytes, signature: str, words: bytes = b"") -> bytes:
        """One word, from a function that returns one."""
        data = "0x" + (keccak256(signature.encode("ascii"))[:4] + words).hex()
        answer = await self._call("eth_call", {"to": "0x" + contract.hex(), "data": data}, "latest")
        try:
            word = bytes.fromhex(str(answer).removeprefix("0x"))
        except ValueError:
            word = b""
        if len(word) != _WORD:
            raise NodeTrouble(f"there is no contract with {signature} at 0x{contract.hex()}")
        return word

    async def _call(self, method: str, *params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            async with opened(self.http, "POST", self.url, json=request) as reply:
                answer = (await whole(reply, _LONGEST_ANSWER)).json()
        except httpx.HTTPError as trouble:
            raise NodeTrouble(f"{self.url} does not answer: {trouble or type(trouble).__name__}") from None
        except ValueError:
            raise NodeTrouble(f"{self.url} is no JSON-RPC endpoint") from None
        if not isinstance(answer, dict) or "result" not in answer:
            refusal = answer.get("error") if isinstance(answer, dict) else answer
            raise NodeTrouble(f"{self.url} refused {method}: {refusal}")
        return answer["result"]


def _number(quantity: Any) -> int:
    try:
        return int(str(quantity), 16)
    except ValueError:
        raise NodeTrouble(f"the node answered {quantity!r} where a number belongs") from None
