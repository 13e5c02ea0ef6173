"""Read contracts, by default at the latest block, with one or several `eth_call`s in one request.

Each read names the error code that API clients get when the node answers with an error.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs
import msgspec

from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_result
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind

T = TypeVar("T")


@attrs.frozen(slots=True)
class Reverted:
    """The contract reverted. `data` is the revert data."""

    data: bytes


@attrs.frozen(slots=True)
class View:
    """Call of a view function, or a trial call of any function. `error_code` is for API clients if the read fails.

    `block` is a tag, a quantity, or an object that names a block by its hash.
    """

    target: bytes
    calldata: bytes
    error_code: str
    sender: bytes | None = None
    block: str | Mapping[str, str] = "latest"

    def as_call(self) -> RpcCall:
        transaction = {"to": hex_of(self.target), "data": hex_of(self.calldata)}
        if self.sender is not None:
            transaction["from"] = hex_of(self.sender)
        return RpcCall("eth_call", (transaction, self.block))


async def read_view(rpc: Rpc, view: View, decode: Callable[[bytes], T]) -> T:
    """Return the decoded return value. A revert is an error, because the registries' view functions never revert."""
    call = view.as_call()
    try:
        text = await rpc.call_as(str, call.method, *call.params)
    except RpcError as error:
        raise view_error(error, view.error_code) from error
    return decode_view(decode_hex(text, view.error_code), decode, view.error_code)


async def read_many(rpc: Rpc, calls: Sequence[View | RpcCall], error_code: str) -> list[bytes | Reverted]:
    """Run all calls in one request. Return a revert as a value. Raise Retryable for any other error, with the view's
    code, or with `error_code` for plain calls and for the request as a whole.
    """
    try:
        answers = await rpc.batch([call.as_call() if isinstance(call, View) else call for call in calls])
    # Many nodes report an exceeded limit once for the whole batch.
    except RpcError as error:
        raise view_error(error, error_code) from error
    results: list[bytes | Reverted] = []
    for call, answer in zip(calls, answers, strict=True):
        call_error_code = call.error_code if isinstance(call, View) else error_code
        if isinstance(answer, RpcError):
            if answer.kind is not RpcErrorKind.REVERTED:
                raise view_error(answer, call_error_code)
            results.append(Reverted(answer.data))
        else:
            results.append(decode_hex(_decode_text(answer), call_error_code))
    return results


def decode_view(data: bytes, decode: Callable[[bytes], T], error_code: str) -> T:
    """Return `decode(data)`. Raise Retryable with `error_code` for data that the contract cannot return, such as
    truncated data."""
    try:
        return decode(data)
    except Refused as broken:
        raise Retryable(
            "relay_unavailable", f"the node's answer is not one that the contract returns: {broken}", error_code
        ) from broken


def is_true(answer: bytes | Reverted) -> bool:
    """Return True when a view returned the boolean true."""
    return not isinstance(answer, Reverted) and len(answer) == 32 and answer[31] == 1


def view_error(error: RpcError, error_code: str) -> Retryable:
    """Return the Retryable for a node that answered a read with an error."""
    if error.kind is RpcErrorKind.RATE_LIMITED:
        return Retryable("relay_unavailable", "the RPC endpoint rate-limits requests", "rate_limited")
    return Retryable("relay_unavailable", f"the chain could not be read: {error}", error_code)


def _decode_text(raw: msgspec.Raw) -> str:
    return decode_result(raw, str, "a contract read")


def decode_hex(text: str, error_code: str) -> bytes:
    """Decode a node's hex. Raise Retryable with `error_code` for text that is not hex."""
    digits = text.removeprefix("0x")
    try:
        # Quantities omit leading zeros, so their number of digits may be odd.
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    except ValueError as broken:
        raise Retryable("relay_unavailable", "the node's answer is not hex", error_code) from broken
