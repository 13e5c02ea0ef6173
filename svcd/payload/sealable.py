"""Convert a model server's JSON to the canonical JSON of a sealed result.

NUL and lone surrogates, which models do emit, become U+FFFD. NaN and infinities become null. Integers beyond
±(2^53−1), such as 64-bit seeds, become decimal strings.
"""

import codecs
import math
import re
from typing import Final

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER
from common.strict_json import MAX_DEPTH

_INVALID_CHARACTERS_PATTERN: Final = re.compile("[\x00\ud800-\udfff]")
# Python reads the file of a codec at its first use, which fails in a process that has no free file descriptor.
_UTF16: Final = codecs.lookup("utf-16-le")
_MAX_OUTPUT_DEPTH: Final = MAX_DEPTH - 1  # one level is the result's own object


def to_sealable(value: object, depth: int = 0) -> object:
    """Convert the value to JSON that `common.canonical_json` accepts. Raise `Refused` for a value nested too deep."""
    if isinstance(value, str):
        return _repair_text(value) if _INVALID_CHARACTERS_PATTERN.search(value) else value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == _MAX_OUTPUT_DEPTH:
        raise Refused(f"the JSON nests deeper than {_MAX_OUTPUT_DEPTH} levels")
    if isinstance(value, dict):
        return {str(to_sealable(key)): to_sealable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_sealable(inner, depth + 1) for inner in value]
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _repair_text(text: str) -> str:
    """Join surrogate pairs that a stream split, and replace lone surrogates and NUL."""
    joined: str = _UTF16.decode(_UTF16.encode(text, "surrogatepass")[0], "replace")[0]
    return joined.replace("\x00", "\ufffd")
