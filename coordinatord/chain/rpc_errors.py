"""What a node's error means.

Nodes agree on messages more than on codes: a nonce error can come as -32603 and a revert as 3, -32000 or -32015. So the
message decides first and the code only where the message says nothing.
"""

import enum
import re
from collections.abc import Mapping

import attrs


class Meaning(enum.Enum):
    REVERTED = "reverted"
    ALREADY_KNOWN = "already known"
    NONCE_TOO_LOW = "nonce too low"
    NONCE_TOO_HIGH = "nonce too high"
    UNDERPRICED = "underpriced"
    NO_FUNDS = "no funds"
    GAS = "gas"
    RANGE_TOO_WIDE = "range too wide"
    RATE_LIMITED = "rate limited"
    REFUSED = "refused"  # the endpoint does not serve this: method not found, unauthorised
    INTERNAL = "internal"


# In order: the first that matches decides.
_MESSAGES: tuple[tuple[Meaning, re.Pattern[str]], ...] = tuple(
    (meaning, re.compile(pattern, re.IGNORECASE))
    for meaning, pattern in (
        (Meaning.ALREADY_KNOWN, r"already known|already imported|known transaction|already in (the )?(mem)?pool"),
        (Meaning.NONCE_TOO_LOW, r"nonce too low|nonce is too low|old nonce|invalid nonce.*lower|nonce.*already.*used"),
        (Meaning.NONCE_TOO_HIGH, r"nonce too high|nonce gap|gapped.?nonce"),
        (
            Meaning.UNDERPRICED,
            r"underpriced|fee too low|max ?fee.*less than.*base|fee cap less|tip.*too low|gas price too low",
        ),
        (Meaning.NO_FUNDS, r"insufficient (funds|balance)|not enough funds|doesn't have enough funds"),
        (Meaning.REVERTED, r"execution reverted|reverted|vm exception|invalid opcode"),
        (
            Meaning.RANGE_TOO_WIDE,
            r"block range|range (is )?too (large|wide)|too many (blocks|results|logs)|more than \d+ (results|logs)"
            r"|response (size|too large)|query returned more|query exceeds|limit(ed)? to (a )?\d[\d, k-]*(block|range)"
            r"|max(imum)? range|ranges? over|range \d+ is too"
            r"|exceed(s|ed)? max.*(block|range|results)",
        ),
        (Meaning.RATE_LIMITED, r"rate.?limit|too many requests|request limit|capacity exceeded|quota|throttl"),
        (Meaning.GAS, r"out of gas|gas required exceeds|intrinsic gas|exceeds block gas limit"),
        (Meaning.REFUSED, r"method not (found|supported|available)|unauthori[sz]ed|forbidden|invalid api key"),
    )
)
_CODES: Mapping[int, Meaning] = {
    3: Meaning.REVERTED,
    -32005: Meaning.RATE_LIMITED,
    -32015: Meaning.REVERTED,
    -32601: Meaning.REFUSED,
    -32603: Meaning.INTERNAL,
}


@attrs.frozen(slots=True)
class RpcError(Exception):
    """The node answered, with an error. `data` is its revert data, where it gave any."""

    code: int
    message: str
    data: bytes
    meaning: Meaning

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def read_error(error: Mapping[str, object]) -> RpcError:
    """The error object of a JSON-RPC answer, classified. Never raises: a strange error is an internal one."""
    code = error.get("code")
    code = code if isinstance(code, int) else 0
    message = str(error.get("message", ""))
    data = _revert_data(error.get("data"))
    meaning = next((m for m, pattern in _MESSAGES if pattern.search(message)), None)
    if meaning is None:
        meaning = Meaning.REVERTED if data else _CODES.get(code, Meaning.INTERNAL)
    return RpcError(code, message, data, meaning)


def _revert_data(data: object) -> bytes:
    if isinstance(data, Mapping):  # some nodes nest it
        data = data.get("data", data.get("result"))
    if isinstance(data, str):
        text = data.removeprefix("Reverted ")
        if text.startswith("0x"):
            try:
                return bytes.fromhex(text[2:])
            except ValueError:
                return b""
    return b""
