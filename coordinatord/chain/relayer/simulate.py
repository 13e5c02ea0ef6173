"""Simulation of relays on the latest state, from the relayer's account, in batches: each alone, or on top of others.

Most relays need only one call, with the gas limit of their kind. If that call fails, or the kind has no limit, the
relay is estimated without a limit. So a refusal never results from our gas limit.
"""

from collections.abc import Sequence
from typing import TypeAlias

import attrs
import msgspec

from common.artifacts import decode_error
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Json, Rpc, RpcCall, decode_result, quantity, retryable_of
from coordinatord.chain.rpc.errors import Meaning, RpcError


@attrs.frozen(slots=True)
class WouldPass:
    gas: int


@attrs.frozen(slots=True)
class WouldRevert:
    """The call would revert. `name` is the contract's error, or None for an unknown error with its data in `raw`."""

    name: str | None
    raw: bytes


@attrs.frozen(slots=True)
class NoVerdict:
    """The node gave no verdict. `code` is for the caller."""

    code: str


Verdict: TypeAlias = WouldPass | WouldRevert | NoVerdict
# Target and calldata.
CallData: TypeAlias = tuple[bytes, bytes]


async def simulate(rpc: Rpc, account: bytes, calls: Sequence[CallData], limits: Sequence[int | None]) -> list[Verdict]:
    """Return a verdict for each (target, calldata). Raise Retryable when the node does not answer at all."""
    verdicts: dict[int, Verdict] = {}
    known = [(place, limit) for place, limit in enumerate(limits) if limit is not None]
    requests = [_request("eth_call", account, calls[place], "latest", gas=limit) for place, limit in known]
    for (place, limit), answer in zip(known, await _all(rpc, requests), strict=True):
        if not isinstance(answer, RpcError):
            verdicts[place] = WouldPass(limit)
    others = [place for place in range(len(calls)) if place not in verdicts]
    requests = [_request("eth_estimateGas", account, calls[place], "latest") for place in others]
    for place, answer in zip(others, await _all(rpc, requests), strict=True):
        verdicts[place] = _verdict(answer)
    return [verdicts[place] for place in range(len(calls))]


async def replay(
    rpc: Rpc, account: bytes, calls: Sequence[CallData], block_number: int | None = None
) -> list[WouldRevert | None]:
    """Return the reason why each call reverts on the state of that block, or None if it passes.

    Use the latest block if none is given, or if the node no longer has the state of that block.
    """
    reasons: list[WouldRevert | None] = []
    block = "latest" if block_number is None else hex(block_number)
    requests = [_request("eth_call", account, call, block) for call in calls]
    for answer in await _all(rpc, requests):
        if isinstance(answer, RpcError) and answer.meaning not in (Meaning.REVERTED, Meaning.GAS):
            if block_number is not None:
                return await replay(rpc, account, calls)
            raise retryable_of(answer, "eth_call")
        reasons.append(reverted(answer.data) if isinstance(answer, RpcError) else None)
    return reasons


class _RanCall(msgspec.Struct):
    status: str


class _RanBlock(msgspec.Struct):
    calls: list[_RanCall]


async def simulate_in_turn(
    rpc: Rpc, account: bytes, runs: Sequence[Sequence[tuple[CallData, int]]]
) -> list[list[bool] | RpcError]:
    """Run the (call, gas limit) pairs of each run one after another, on the latest state. Return which calls passed, or
    the error if the node does not serve the simulation.

    Raise Retryable when the node does not answer at all.
    """
    requests = [
        RpcCall(
            "eth_simulateV1",
            ({"blockStateCalls": [{"calls": [_call(account, call, gas) for call, gas in run]}]}, "latest"),
        )
        for run in runs
    ]
    found: list[list[bool] | RpcError] = []
    for run, answer in zip(runs, await _all(rpc, requests), strict=True):
        if isinstance(answer, RpcError):
            found.append(answer)
            continue
        blocks = decode_result(answer, list[_RanBlock], "eth_simulateV1")
        calls = [call for block in blocks for call in block.calls]
        if len(calls) != len(run):
            raise Retryable(
                "chain_unreachable", f"eth_simulateV1 returned {len(calls)} calls, but {len(run)} were sent"
            )
        found.append([quantity(call.status) == 1 for call in calls])
    return found


def reverted(data: bytes) -> WouldRevert:
    return WouldRevert(decode_error(data), data)


def _request(method: str, account: bytes, call: CallData, block: str, *, gas: int | None = None) -> RpcCall:
    return RpcCall(method, (_call(account, call, gas), block))


def _call(account: bytes, call: CallData, gas: int | None) -> dict[str, Json]:
    target, calldata = call
    request: dict[str, Json] = {
        "from": "0x" + account.hex(),
        "to": "0x" + target.hex(),
        "data": "0x" + calldata.hex(),
    }
    if gas is not None:
        request["gas"] = hex(gas)
    return request


async def _all(rpc: Rpc, requests: Sequence[RpcCall]) -> list[msgspec.Raw | RpcError]:
    try:
        return await rpc.batch(requests)
    # One error for the whole batch.
    except RpcError as error:
        raise retryable_of(error, requests[0].method) from error


def _verdict(answer: msgspec.Raw | RpcError) -> Verdict:
    if isinstance(answer, RpcError):
        if answer.meaning is Meaning.REVERTED:
            return reverted(answer.data)
        return NoVerdict(retryable_of(answer, "eth_estimateGas").code or "rpc_internal")
    return WouldPass(quantity(decode_result(answer, str, "eth_estimateGas")))
