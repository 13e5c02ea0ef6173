"""Texts of the wire: strict JSON, scalars, address books, known markets, paths into JSON."""

import base64
import json
import math
from typing import Final

from common import scalars
from common.address_book import AddressBook
from common.canonical_json import canonical
from common.cid import parse_cid, read_store_cid
from common.strict_json import MAX_DEPTH, parse
from svc.core.known_market import markets_as_json, read_markets
from svcd.base.json_path import JsonPath
from tests.fuzz.sealed import _cases
from tests.fuzz.target import Target, refused

_WORDS: Final = (
    *(b"null", b"true", b"false", b"NaN", b"Infinity", b"-0", b"1e400", b"1e21", b"9007199254740993", b"0.1"),
    *(b"\\u0000", b"\\ud800", b"\\udc00", b'{"a":', b"[[[[[[[[", b"]]]]]]]]", b"\xef\xbb\xbf", b'"":', b"\\/", b"\\n"),
)


def _same(one: object, other: object) -> bool:
    """Compare values with their types: 1, 1.0 and true are different."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)  # type: ignore[index, call-overload]
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))  # type: ignore[arg-type]
    return one == other


def _strictly(data: bytes) -> object:
    """Return the value read by the standard library, after checking each rule of the format separately."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    def finite(digits: str) -> float:
        assert math.isfinite(float(digits))
        return float(digits)

    def none(_: str) -> object:
        raise AssertionError

    def judge(value: object, depth: int) -> None:
        assert depth <= MAX_DEPTH or not isinstance(value, dict | list)
        if isinstance(value, str):
            value.encode()
            assert "\0" not in value
        for inner in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
            judge(inner, depth + 1)

    value: object = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_float=finite, parse_constant=none)
    judge(value, 1)
    return value


def check_json(data: bytes) -> None:
    """Check that texts are accepted exactly if the standard library and the rules of the format accept them."""
    parsed: list[object] = []
    refused(lambda: parsed.append(parse(data)))
    try:
        expected = [_strictly(data)]
    except (AssertionError, ValueError, RecursionError):
        expected = []
    assert _same(parsed, expected), (parsed, expected)
    for value in parsed:
        spelt = refused(lambda value=value: canonical(value))
        if spelt is not None:
            assert canonical(parse(spelt)) == spelt


def check_scalars(data: bytes) -> None:
    """Check that a value has only one encoding."""
    text = data.decode("latin-1")
    number = refused(lambda: scalars.read_uint(text, 256, "n"))
    assert number is None or str(number) == text
    assert number == refused(lambda: scalars.read_decimal(text, 256, "n"))
    for length in (0, 1, 20, 32):
        raw = refused(lambda length=length: scalars.read_hex(text, length, "h"))
        assert raw is None or (scalars.hex_of(raw) == text.lower() and len(raw) == length)
        bare = refused(lambda length=length: scalars.read_bare_hex(text, length, "h"))
        assert bare is None or (bare.hex() == text.lower() and len(bare) == length)
    upto = refused(lambda: scalars.read_hex_upto(text, 64, "h"))
    assert upto is None or scalars.hex_of(upto) == text.lower()
    decoded = refused(lambda: scalars.read_base64(text, 256, "b"))
    try:
        expected = base64.b64decode(text, validate=True)
        expected = expected if base64.b64encode(expected).decode() == text and len(expected) <= 256 else None
    except ValueError:
        expected = None
    assert decoded == expected


def check_address_book(data: bytes) -> None:
    read = refused(lambda: AddressBook.parse(data))
    if read is not None:
        assert AddressBook.from_json(parse(canonical(read.as_json()))) == read
    markets = refused(lambda: read_markets(data))
    if markets is not None:
        assert read_markets(canonical(markets_as_json(markets))) == markets


def check_json_path(data: bytes) -> None:
    """Check that a path is rejected or finds an existing value. Values of every type are walked."""
    text, _, rest = data.partition(b"\n")
    path = refused(lambda: JsonPath.parse(text.decode("utf-8", "replace")))
    if path is not None:
        for value in ({"a": [{"b": 1}, [2, [3]]], "": None}, [[], {}], None, 7, refused(lambda: parse(rest))):
            assert isinstance(path.select(value), list)


_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def check_cid(data: bytes) -> None:
    """Check that a CIDv1 has one text, and that the stores' spellings name the same bytes."""
    text = data.decode("latin-1")
    one = refused(lambda: parse_cid(text, "cid"))
    assert one is None or str(one) == text
    any_of = refused(lambda: read_store_cid(text, "cid"))
    assert one is None or any_of == one
    if any_of is None or one is not None:
        return
    number = 0
    digits = text[1:] if text[0] == "z" else text
    for digit in digits:
        number = number * 58 + _BASE58.index(digit)
    raw = any_of.encode()[2:] if text[0] == "Q" else any_of.encode()
    assert number.to_bytes(len(raw), "big") == raw
    spelt = ""
    while number:
        number, place = divmod(number, 58)
        spelt = _BASE58[place] + spelt
    assert spelt == digits, "two spellings of one id"


def _books() -> list[bytes]:
    books = [str(case["text"]).encode() for case in _cases("address_book.json") if "text" in case]
    deployment = parse(books[0])
    market = {"deployment": deployment, "escrowKeys": {"11" * 32: "mock"}, "boxKeys": {"7": "22" * 32}}
    return [*books, json.dumps({"version": 1, "markets": {"https://a": market}}).encode()]


def _jsons() -> list[bytes]:
    texts = [
        str(case["text"]).encode("utf-8", "surrogatepass") for case in _cases("strict_json.json") if "text" in case
    ]
    return [*texts, b"[" * 32 + b"]" * 32, b"[" * 33 + b"]" * 33, b"[" * 3000, b'{"a":' * 600, b"1" * 4000]


def _cids() -> list[bytes]:
    return [
        *(str(case[key]).encode() for case in _cases("cid.json") for key in ("cid", "text") if key in case),
        b"QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",
        b"zb2rhe5P4gXftAwvA4eXQ5HJwsER2owDyS9sKaQRRVQPn93bA",
    ]


TARGETS: Final = (
    Target("json", check_json, _jsons, _WORDS),
    Target(
        "scalars", check_scalars, lambda: [b"0", b"115792", b"0x00", b"0x" + b"aB" * 32, b"ab" * 20, b"AAA=", b"AA=="]
    ),
    Target("address-book", check_address_book, _books, _WORDS),
    Target(
        "json-path", check_json_path, lambda: [b"$", b"a[0].b", b"$.a[*]", b'a["b"]', b"a[-1]\n[1]", b"[" + b"9" * 4400]
    ),
    Target("cid", check_cid, _cids, (b"Qm", b"zb2", b"bafkrei", b"bafybei"), longest=96),
)
