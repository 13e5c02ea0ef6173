"""Classify the errors of nodes.

Nodes agree more on messages than on codes: a nonce error may have code -32603, and a revert may have code 3, -32000 or
-32015. So the message decides first, and the code only when the message is unknown.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final

import attrs

# Longer than any error message of the known node software.
_MAX_MESSAGE_CHARS: Final = 1_000
# Longer than the encoded error of any market contract. A refused relay is stored with this error.
_MAX_REVERT_BYTES: Final = 4_096


class RpcErrorKind(enum.Enum):
    """Meaning of a node's error, independent of the node's software."""

    REVERTED = "reverted"
    ALREADY_KNOWN = "already known"
    NONCE_TOO_LOW = "nonce too low"
    NONCE_TOO_HIGH = "nonce too high"
    UNDERPRICED = "underpriced"
    NO_FUNDS = "no funds"
    # Too little gas to run, or to pay for the transaction's bytes.
    TOO_LITTLE_GAS = "gas"
    # Above the block's gas limit, EIP-7825's cap, or the node's cost limit per transaction.
    TOO_MUCH_GAS = "too much gas"
    # More bytes than the node's pool accepts.
    OVERSIZED = "oversized"
    POOL_FULL = "pool full"
    # The chain rejects this transaction type or this chain id.
    UNSUPPORTED = "unsupported"
    RANGE_TOO_WIDE = "range too wide"
    RATE_LIMITED = "rate limited"
    # The endpoint does not serve the method, or the request is unauthorised.
    REFUSED = "refused"
    INTERNAL = "internal"


# The first match decides. Rejections of transactions come first, because some share codes or words with other errors:
# Besu rejects a gas limit with -32005, which other clients use for rate limits. A test covers the messages of all known
# clients. Gaps between words are bounded ({0,99}), so that no message takes long to match.
_MESSAGE_PATTERNS: tuple[tuple[RpcErrorKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        # Comes first, because the contract's text after this prefix may match other patterns.
        (RpcErrorKind.REVERTED, r"^execution reverted"),
        (
            RpcErrorKind.ALREADY_KNOWN,
            r"already known|already imported|known transaction|already in (the )?(mem)?pool|existing txn with same hash"
            r"|^AlreadyKnown|^ALREADY_EXISTS",
        ),
        (
            RpcErrorKind.NONCE_TOO_LOW,
            r"nonce too low|nonce is too low|old ?nonce|invalid nonce.{0,99}lower|nonce.{0,99}already.{0,99}used",
        ),
        (
            RpcErrorKind.NONCE_TOO_HIGH,
            r"nonce too high|nonce ?gap|gapped.?nonce|nonce is too distant|nonce too (distant|far)|NonceTooFarInFuture"
            r"|lower nonce exists",
        ),
        (
            RpcErrorKind.TOO_MUCH_GAS,
            r"exceeds block gas limit|gas limit (is )?too high|gas limit .{0,99}exceeds (the )?(block|maximum)"
            r"|exceeds max transaction gas limit|gas limit cap exceeded|gas limit (\(\d+\) )?is greater than the cap"
            r"|gas limit is greater than the block|TxGasLimitCapExceeded|GasLimitExceeded|gas limit reached"
            r"|intrinsic gas too high|exceeds the block gas limit|fee .{0,99}exceeds the configured cap"
            r"|fee cap exceeded",
        ),
        (
            RpcErrorKind.OVERSIZED,
            r"oversized data|transaction too large|MaxTxSizeExceeded|transaction size.{0,99}(limit|exceed)|RLPTooLong",
        ),
        (
            RpcErrorKind.UNDERPRICED,
            r"underpriced|fee ?too ?low|max ?fee.{0,99}less than.{0,99}base|fee cap less|feecap .{0,99} below"
            r"|tip.{0,99}too low|gas price (too low|below)|insufficient gas price to replace|could not replace existing"
            r"|ReplacementNotAllowed|priority fee below minimum",
        ),
        (
            RpcErrorKind.NO_FUNDS,
            r"insufficient ?(funds|balance)|not enough funds|doesn't have enough funds|upfront cost exceeds"
            r"|overdraws from account",
        ),
        (
            RpcErrorKind.POOL_FULL,
            r"pool is full|discarded outright due to pool size|account limit exceeded|in-flight transaction limit",
        ),
        (
            RpcErrorKind.UNSUPPORTED,
            r"transaction type|tx type .{0,99}not supported|(invalid|wrong) ?(tx)?chain ?id|chainid not supported"
            r"|different EIP-155 chain|signed for another chain",
        ),
        (RpcErrorKind.REVERTED, r"execution reverted|reverted|vm exception|invalid opcode"),
        (
            RpcErrorKind.RANGE_TOO_WIDE,
            r"block range|range (is )?too (large|wide)|too many (blocks|results|logs)|more than \d+ (results|logs)"
            r"|response (size|too large)|query returned more|query exceeds|limit(ed)? to (a )?\d[\d, k-]*(block|range)"
            r"|max(imum)? range|ranges? over|range \d+ is too"
            r"|exceed(s|ed)? max.{0,99}(block|range|results)",
        ),
        (RpcErrorKind.RATE_LIMITED, r"rate.?limit|too many requests|request limit|capacity exceeded|quota|throttl"),
        (RpcErrorKind.TOO_LITTLE_GAS, r"out of gas|gas required exceeds|intrinsic ?gas|insufficient gas for floor"),
        (
            RpcErrorKind.REFUSED,
            r"method not (found|supported|available|enabled)|unauthori[sz]ed|forbidden|invalid api key",
        ),
    )
)
_KIND_BY_CODE: Mapping[int, RpcErrorKind] = {
    3: RpcErrorKind.REVERTED,
    -32005: RpcErrorKind.RATE_LIMITED,
    -32015: RpcErrorKind.REVERTED,
    -32601: RpcErrorKind.REFUSED,
    -32603: RpcErrorKind.INTERNAL,
    -32604: RpcErrorKind.REFUSED,
}


@attrs.frozen(slots=True)
class RpcError(Exception):
    """Error that the node answered with. `data` is the revert data, if the node sent any."""

    code: int
    message: str
    data: bytes
    kind: RpcErrorKind

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def classify_error(error: Mapping[str, object]) -> RpcError:
    """Classify the error object of a JSON-RPC answer. An unknown error counts as internal."""
    code, message = error.get("code"), error.get("message")
    code = code if isinstance(code, int) else 0
    message = message[:_MAX_MESSAGE_CHARS] if isinstance(message, str) else ""
    data = _revert_data(error.get("data"))
    kind = next((known for known, pattern in _MESSAGE_PATTERNS if pattern.search(message)), None)
    if kind is None:
        kind = RpcErrorKind.REVERTED if data else _KIND_BY_CODE.get(code, RpcErrorKind.INTERNAL)
    return RpcError(code, message, data, kind)


def _revert_data(data: object) -> bytes:
    # Some nodes put the data into a nested object.
    if isinstance(data, Mapping):
        data = data.get("data", data.get("result"))
    if isinstance(data, str):
        text = data.removeprefix("Reverted ")
        if text.startswith("0x"):
            try:
                return bytes.fromhex(text[2 : 2 + 2 * _MAX_REVERT_BYTES])
            except ValueError:
                return b""
    return b""
