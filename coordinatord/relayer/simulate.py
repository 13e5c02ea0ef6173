"""Each relay alone against the latest state, from the relayer's account, all in one batch.

An estimate of gas is used for it: the node runs the call for a verdict and finds the gas in one go.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs
import msgspec

from common.artifacts import decode_error
from coordinatord.chain.rpc import Call, Rpc, decode_result, quantity, trouble_of
from coordinatord.chain.rpc_errors import Meaning, RpcError

_BATCH: Final = 200


@attrs.frozen(slots=True)
class WouldPass:
    gas: int


@attrs.frozen(slots=True)
class WouldRevert:
    """The contract error's name, or None and the revert data when no contract of ours has it."""

    name: str | None
    raw: bytes


@attrs.frozen(slots=True)
class NoVerdict:
    """The node answered something else than a verdict; `code` tells the caller."""

    code: str


Verdict: TypeAlias = WouldPass | WouldRevert | NoVerdict


async def simulate(rpc: Rpc, account: bytes, calls: Sequence[tuple[bytes, bytes]]) -> list[Verdict]:
    """A verdict for each (target, calldata). Retryable when the node does not answer at all."""
    return [_verdict(answer) for answer in await _all(rpc, "eth_estimateGas", account, calls, "latest")]


async def replay(
    rpc: Rpc, account: bytes, calls: Sequence[tuple[bytes, bytes]], block_number: int
) -> list[WouldRevert | None]:
    """Why each call reverts on the state of that block, or None where it would pass now."""
    reasons: list[WouldRevert | None] = []
    for answer in await _all(rpc, "eth_call", account, calls, hex(block_number)):
        if isinstance(answer, RpcError) and answer.meaning not in (Meaning.REVERTED, Meaning.GAS):
            raise trouble_of(answer, "eth_call")
        reasons.append(reverted(answer.data) if isinstance(answer, RpcError) else None)
    return reasons


def reverted(data: bytes) -> WouldRevert:
    return WouldRevert(decode_error(data), data)


async def _all(
    rpc: Rpc, method: str, account: bytes, calls: Sequence[tuple[bytes, bytes]], block: str
) -> list[msgspec.Raw | RpcError]:
    sender = "0x" + account.hex()
    requests = [
        Call(method, ({"from": sender, "to": "0x" + target.hex(), "data": "0x" + calldata.hex()}, block))
        for target, calldata in calls
    ]
    answers: list[msgspec.Raw | RpcError] = []
    for start in range(0, len(requests), _BATCH):
        answers += await rpc.batch(requests[start : start + _BATCH])
    return answers


def _verdict(answer: msgspec.Raw | RpcError) -> Verdict:
    if isinstance(answer, RpcError):
        if answer.meaning is Meaning.REVERTED:
            return reverted(answer.data)
        return NoVerdict(trouble_of(answer, "eth_estimateGas").code or "rpc_internal")
    return WouldPass(quantity(decode_result(answer, str, "eth_estimateGas")))
