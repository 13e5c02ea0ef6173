"""The market's operator changes models, windows, the allowlist and providers' limits. Buyers must not be affected.

The operator sends transactions without waiting. A reorg may drop them, and they are not sent again.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import eth_abi
import httpx
from eth_utils.crypto import keccak

from tests.soak.ground import Ground

_WINDOW: Final = 600  # a window that no buyer orders
_MODEL: Final = 900  # a model that no provider serves
_ENTRIES: Final = 3
_GAS: Final = {"gas": hex(500_000), "maxFeePerGas": hex(10**12)}  # enough during a spike of the fees

Call = tuple[str, Sequence[Any]]


@attrs.frozen
class Operator:
    ground: Ground

    async def change(self, n: int) -> str:
        book = self.ground.book
        stranger = len(self.ground.providers) + 1  # a provider without a daemon
        calls: tuple[tuple[bytes, Call], ...] = (
            (book.job_registry, ("setSla(uint32,bool)", (_WINDOW, n % 2 == 0))),
            (
                book.job_registry,
                ("setModel(uint32,string,bool,string,string)", (_MODEL, f"soak/{n}", n % 3 > 0, "soak", "{}")),
            ),
            (
                book.provider_registry,
                ("setAllowlist(bytes32,uint8,string)", (bytes([n % _ENTRIES]) * 32, 1 + n % 2, f"entry {n}")),
            ),
            (book.provider_registry, ("setCeiling(uint32,uint32)", (stranger, 4_096 + n))),
            (book.provider_registry, ("setModelAllowed(uint32,uint32,bool)", (stranger, _MODEL, n % 2 == 0))),
        )
        target, call = calls[n % len(calls)]
        sent = {"from": self.ground.wallets.admin.address, "to": "0x" + target.hex(), "data": _calldata(*call)}
        try:
            await self.ground.anvil.call("eth_sendTransaction", {**sent, **_GAS})
        except httpx.HTTPError as trouble:
            return type(trouble).__name__
        return "sent"


def _calldata(signature: str, values: Sequence[Any]) -> str:
    types = signature.partition("(")[2].removesuffix(")").split(",")
    return "0x" + (keccak(text=signature)[:4] + eth_abi.encode(types, values)).hex()
