import json

import attrs
import pytest

from common.address_book import AddressBook, TokenDomain
from common.box import SecretKey
from common.refusal import Refused
from svc.core.known_market import (
    KnownMarket,
    deployment_fingerprint,
    market_url,
    markets_as_json,
    read_key,
    read_markets,
)

ADDRESSES = [f"0x{n:02x}" + "ab" * 19 for n in (1, 2, 3, 4)]
BOOK = AddressBook(31337, 77, *(bytes.fromhex(each[2:]) for each in ADDRESSES), 6, TokenDomain("Dev Dollar", "1"))
KEY = SecretKey(bytes(range(32))).public.raw.hex()
CHANGES = [
    {"chain_id": 1},
    {"job_registry": b"\x09" * 20},
    {"provider_registry": b"\x09" * 20},
    {"ask_registry": b"\x09" * 20},
    {"paytoken": b"\x09" * 20},
    {"payment_token_decimals": 18},
    {"token_domain": TokenDomain("Dev Dollar", "2")},
    {"token_domain": TokenDomain("Other Dollar", "1")},
]


@pytest.mark.parametrize("changed", CHANGES)
def test_another_deployment_has_another_fingerprint(changed: dict[str, object]) -> None:
    assert deployment_fingerprint(attrs.evolve(BOOK, deploy_block=1)) == deployment_fingerprint(BOOK)
    assert deployment_fingerprint(attrs.evolve(BOOK, **changed)) != deployment_fingerprint(BOOK)  # type: ignore[arg-type] # one field each


@pytest.mark.parametrize(
    ("given", "known_by"),
    [
        ("https://a.example", "https://a.example"),
        ("HTTPS://A.Example:443/", "https://a.example"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://127.0.0.1:8402/market/", "http://127.0.0.1:8402/market"),
        ("https://user:secret@a.example", "https://a.example"),
        ("http://[::1]:8402", "http://[::1]:8402"),
    ],
)
def test_market_is_known_by_one_address(given: str, known_by: str) -> None:
    assert market_url(given) == known_by


def test_known_markets_are_read_back_as_they_were_written() -> None:
    known = KnownMarket(BOOK).with_escrow_key(KEY, "static-coordinator-v1").with_box_key(7, KEY)
    assert read_markets(json.dumps(markets_as_json({"https://a": known})).encode()) == {"https://a": known}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"version": 2, "markets": {}},
        {"version": 1},
        {"version": 1, "markets": {"https://a": {}}},
        {"version": 1, "markets": {"https://a": KnownMarket(BOOK).as_json() | {"boxKeys": {"0": KEY}}}},
        {"version": 1, "markets": {"https://a": KnownMarket(BOOK).as_json() | {"boxKeys": {"7": "00" * 32}}}},
        {"version": 1, "markets": {"https://a": KnownMarket(BOOK).as_json() | {"escrowKeys": {KEY: None}}}},
    ],
)
def test_file_of_something_else_is_refused(document: object) -> None:
    with pytest.raises(Refused):
        read_markets(json.dumps(document).encode())


@pytest.mark.parametrize("given", [KEY, "0x" + KEY, KEY.upper()])
def test_key_is_read_in_any_usual_spelling(given: str) -> None:
    assert read_key(given, "key") == KEY


@pytest.mark.parametrize("given", [None, "", KEY[2:], "zz" * 32, "00" * 32])
def test_unusable_box_key_is_refused(given: object) -> None:
    with pytest.raises(Refused):
        read_key(given, "key")
