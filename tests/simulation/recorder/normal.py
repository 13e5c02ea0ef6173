"""Replace everything that differs between two sound runs (ids, keys, times, blocks, gas) with a stable name.

An id with a meaning gets that meaning: `job#2` is the third job that the run's plan orders, `provider#0` an account of
the devnet. Any other id becomes its kind, `<hex32>`. When it occurs again in the same entry it becomes
`<hex32 of FIELD>`, so that two fields which must agree still visibly agree. Names never count across entries: one new
id does not rename the next.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

# Numbers between these are times: in seconds, and in thousands and millions of a second.
_TIMES: Final = (1_600_000_000, 2_300_000_000)
_UNITS: Final = (1, 1_000, 1_000_000)
# Fields that follow the clock, the chain's head, the gas market, or the number of rows before this one.
_VARYING: Final = re.compile(
    r"(.*_)?(at|until|time|times|age|seconds|ms|micros|block|blocks|height|lag|nonce|since|moved|happened|number|hour|gas_price|ordinal|posted_log|retry_after|median_secs|requeued|id_seq"
    r"|gas|gas_used|gas_limit|base_fee|max_fee|max_tip|tip|wei|place|call_index|takes_back|position|confirmations|head"
    r"|block_number|retry-after|raw|version|port|system_identifier|terms)",
    re.IGNORECASE,
)
_LONG_BYTES: Final = 65  # longer ones are signed transactions and ciphertexts of partly random length
_WORDS: Final = re.compile(
    r"(?P<hex>(?:0x|\\x)[0-9a-fA-F]{8,}|\b[0-9a-fA-F]{24,}\b)"
    r"|(?P<etag>^(?:W/)?\"[^\"]+\"$)"
    r"|(?P<cid>\bba[a-z2-7]{50,}\b)"
    r"|(?P<when>\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)?)"
    r"|(?P<port>(?<=127\.0\.0\.1):\d{2,5}\b)"
    r"|(?P<id>\b(?:file-|batch_|batch_req_|whk_|msg_|svc_sess_)[A-Za-z0-9_\-]{12,}|\bwhsec_[A-Za-z0-9+/=]+)"
    r"|(?P<base64>^[A-Za-z0-9+/]{40,}={0,2}$)"
    r"|(?P<code>(?<![\w-])(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9_-]{32,}(?![\w-]))"
    r"|(?P<number>(?<![\w.])\d{10,16}(?![\w.]))"
)


class Normaliser:
    """`names`: names by hex digits without a prefix, or by the id as written."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = {name.lower(): meaning for name, meaning in names.items()}
        self._met: dict[str, str] = {}  # in this entry: where each nameless id occurred first

    def entry(self, value: Any) -> Any:
        """Normalise a JSON value, independent of earlier entries."""
        self._met = {}
        return self._value(value, "")

    def text(self, text: str) -> str:
        self._met = {}
        return self._text(text, "")

    def _value(self, value: Any, field: str) -> Any:
        match value:
            case dict():
                return {self._text(key, ""): self._value(value[key], key) for key in sorted(value)}
            case list() | tuple():
                return [self._value(one, field) for one in value]
            case None | bool():
                return value
            case bytes():
                return self._value("0x" + value.hex(), field)
            case int() | float():
                return self._number(value, field)
            case _:
                text = str(value)
                if _VARYING.fullmatch(field) and (text.isdecimal() or _WORDS.fullmatch(text)):
                    return "<varies>"
                return self._text(text, field)

    def _number(self, number: float, field: str) -> Any:
        if _is_time(number):
            return "<time>"
        return "<varies>" if _VARYING.fullmatch(field) and number else number

    def _text(self, text: str, field: str) -> str:
        return _WORDS.sub(lambda found: self._word(found, field), text)

    def _word(self, found: "re.Match[str]", field: str) -> str:
        word, kind = found[0], str(found.lastgroup)
        match kind:
            case "number":
                return "<time>" if _is_time(int(word)) else word
            case "when":
                return "<time>"
            case "port":
                return ":<port>"
            case "hex":
                digits = word.lower().removeprefix("0x").removeprefix("\\x")
                kind = f"hex{len(digits) // 2}" if len(digits) <= 2 * _LONG_BYTES else "bytes"
                if digits.strip("0") == "":
                    return f"<zero {kind}>"
            case _:
                digits = word.lower()
                kind = word[: word.index("_") if "_" in word[:9] else 4].rstrip("-") if kind == "id" else kind
        for known in (digits, digits[24:] if len(digits) == 64 else ""):
            if known in self._names:
                return self._names[known]
        first = self._met.setdefault(digits, field)
        return f"<{kind}>" if first == field else f"<{kind} of {first}>"


def _is_time(number: float) -> bool:
    return any(_TIMES[0] * unit <= number <= _TIMES[1] * unit for unit in _UNITS)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
