"""Simulation of relays on the latest state, from the relayer's account, in batches: each relay alone, or after other
relays.

Most relays need only one call, with the gas limit of their kind. If that call fails, or the kind has no limit, the gas
is estimated. So a refusal never results from our gas limit.
"""

from collections.abc import Sequence
from typing import TypeAlias

import attrs
import msgspec

from common.artifacts import decode_error_name
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Json, Rpc, RpcCall, decode_quantity, decode_result, to_retryable
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind


@attrs.frozen(slots=True)
class WouldPass:
    """The call would succeed with this gas limit."""

    gas: int


@attrs.frozen(slots=True)
class WouldRevert:
    """The call would revert. `name` is the contract's error, or None for an unknown error with its data in `raw`."""

    name: str | None
    raw: bytes


@attrs.frozen(slots=True)
class NoVerdict:
    """The node did not say if the call would succeed. `code` is the error code for the caller."""

    code: str


Verdict: TypeAlias = WouldPass | WouldRevert | NoVerdict
# Target and calldata.
ContractCall: TypeAlias = tuple[bytes, bytes]


async def simulate(
    rpc: Rpc, account: bytes, calls: Sequence[ContractCall], limits: Sequence[int | None]
) -> list[Verdict]:
    """Return, for each (target, calldata), whether the call would pass. Raise Retryable when the node does not answer
    at all."""
    verdicts: dict[int, Verdict] = {}
    known = [(index, limit) for index, limit in enumerate(limits) if limit is not None]
    requests = [_build_request("eth_call", account, calls[index], "latest", gas=limit) for index, limit in known]
    for (index, limit), answer in zip(known, await _request_all(rpc, requests), strict=True):
        if not isinstance(answer, RpcError):
            verdicts[index] = WouldPass(limit)
    others = [index for index in range(len(calls)) if index not in verdicts]
    requests = [_build_request("eth_estimateGas", account, calls[index], "latest") for index in others]
    for index, answer in zip(others, await _request_all(rpc, requests), strict=True):
        verdicts[index] = _decode_verdict(answer)
    return [verdicts[index] for index in range(len(calls))]


async def replay(
    rpc: Rpc, account: bytes, calls: Sequence[ContractCall], block_number: int | None = None
) -> list[WouldRevert | None]:
    """Return the reason why each call reverts on the state of that block, or None if the call passes. Use the latest
    block if no block is given, or if the node no longer has the state of that block."""
    reasons: list[WouldRevert | None] = []
    block = "latest" if block_number is None else hex(block_number)
    requests = [_build_request("eth_call", account, call, block) for call in calls]
    for answer in await _request_all(rpc, requests):
        if isinstance(answer, RpcError) and answer.kind not in (RpcErrorKind.REVERTED, RpcErrorKind.TOO_LITTLE_GAS):
            if block_number is not None:
                return await replay(rpc, account, calls)
            raise to_retryable(answer, "eth_call")
        reasons.append(decode_revert(answer.data) if isinstance(answer, RpcError) else None)
    return reasons


class _SimulatedCall(msgspec.Struct):
    status: str


class _SimulatedBlock(msgspec.Struct):
    calls: list[_SimulatedCall]


async def simulate_sequences(
    rpc: Rpc, account: bytes, sequences: Sequence[Sequence[tuple[ContractCall, int]]]
) -> list[list[bool] | RpcError]:
    """Run the (call, gas limit) pairs of each sequence one after another, on the latest state. Return, for each
    sequence, which calls passed, or its error. Raise Retryable when the node does not answer at all."""
    requests = [
        RpcCall(
            "eth_simulateV1",
            ({"blockStateCalls": [{"calls": [_call_params(account, call, gas) for call, gas in sequence]}]}, "latest"),
        )
        for sequence in sequences
    ]
    found: list[list[bool] | RpcError] = []
    for sequence, answer in zip(sequences, await _request_all(rpc, requests), strict=True):
        if isinstance(answer, RpcError):
            found.append(answer)
            continue
        blocks = decode_result(answer, list[_SimulatedBlock], "eth_simulateV1")
        calls = [call for block in blocks for call in block.calls]
        if len(calls) != len(sequence):
            raise Retryable(
                "chain_unreachable", f"eth_simulateV1 returned {len(calls)} calls, but {len(sequence)} were sent"
            )
        found.append([decode_quantity(call.status) == 1 for call in calls])
    return found


def decode_revert(data: bytes) -> WouldRevert:
    return WouldRevert(decode_error_name(data), data)


def _build_request(method: str, account: bytes, call: ContractCall, block: str, *, gas: int | None = None) -> RpcCall:
    return RpcCall(method, (_call_params(account, call, gas), block))


def _call_params(account: bytes, call: ContractCall, gas: int | None) -> dict[str, Json]:
    target, calldata = call
    request: dict[str, Json] = {
        "from": "0x" + account.hex(),
        "to": "0x" + target.hex(),
        "data": "0x" + calldata.hex(),
    }
    if gas is not None:
        request["gas"] = hex(gas)
    return request


async def _request_all(rpc: Rpc, requests: Sequence[RpcCall]) -> list[msgspec.Raw | RpcError]:
    try:
        return await rpc.batch(requests)
    # The node answered the whole batch with one error.
    except RpcError as error:
        raise to_retryable(error, requests[0].method) from error


def _decode_verdict(answer: msgspec.Raw | RpcError) -> Verdict:
    if isinstance(answer, RpcError):
        if answer.kind is RpcErrorKind.REVERTED:
            return decode_revert(answer.data)
        return NoVerdict(to_retryable(answer, "eth_estimateGas").code or "rpc_internal")
    return WouldPass(decode_quantity(decode_result(answer, str, "eth_estimateGas")))
