"""Address books as texts, including invalid ones with the key at fault."""

import json
from typing import Any

from tests.vectors.vector_file import Case

TOKEN_DOMAIN = {"name": "Dev Dollar", "version": "1"}
BOOK: dict[str, Any] = {
    "chainId": 31337,
    "deployBlock": 0,
    "jobRegistry": "0x" + "11" * 20,
    "providerRegistry": "0x" + "22" * 20,
    "askRegistry": "0x" + "33" * 20,
    "paytoken": "0x" + "aB" * 20,
    "paymentTokenDecimals": 6,
    "tokenDomain": TOKEN_DOMAIN,
}
CONTRACTS = ("jobRegistry", "providerRegistry", "askRegistry", "paytoken")


def text(**changed: Any) -> str:
    return json.dumps(BOOK | changed)


def cases() -> list[Case]:
    accepted = {
        "typical": text(),
        "greatest values": text(chainId=2**53 - 1, deployBlock=2**53 - 1, paymentTokenDecimals=36),
        "integers as strings": text(chainId="1", deployBlock="17", paymentTokenDecimals="0"),
        "name beyond ASCII": text(tokenDomain={"name": "Доллар", "version": "2"}),
    }
    made: list[Case] = [{"name": name, "text": book} for name, book in accepted.items()]

    def refused(reason: str, name: str, param: str | None, book: str) -> None:
        made.append({"name": name, "param": param, "text": book, "refused": reason})

    for key in BOOK:
        refused("missing", f"{key} missing", key, json.dumps({k: v for k, v in BOOK.items() if k != key}))
    for key in TOKEN_DOMAIN:
        param = f"tokenDomain.{key}"
        rest = {k: v for k, v in TOKEN_DOMAIN.items() if k != key}
        refused("missing", f"{param} missing", param, text(tokenDomain=rest))
        refused("malformed", f"{param} empty", param, text(tokenDomain=rest | {key: ""}))
        refused("malformed", f"{param} a number", param, text(tokenDomain=rest | {key: 1}))
    refused("unknown_key", "a key too many", "paymentToken", text(paymentToken="0x" + "44" * 20))
    refused("unknown_key", "a key in another case", "chainid", text(chainid=1))
    refused(
        "unknown_key",
        "a key too many in the token's domain",
        "tokenDomain.chainId",
        text(tokenDomain=TOKEN_DOMAIN | {"chainId": 1}),
    )
    refused("not_json", "a key twice", None, text()[:-1] + ', "chainId": 1}')
    inner = text().replace('"version": "1"', '"version": "1", "version": "2"')
    refused("not_json", "a key twice in the token's domain", None, inner)
    refused("not_json", "cut short", None, text()[:-1])
    refused("not_json", "nothing at all", None, "")
    refused("malformed", "an array", None, "[]")
    refused("malformed", "a string for the token's domain", "tokenDomain", text(tokenDomain="Dev Dollar"))
    for key, name, value in (
        ("chainId", "zero", 0),
        ("chainId", "beyond 2^53 - 1", str(2**53)),
        ("chainId", "a bool", True),
        ("deployBlock", "negative", -1),
        ("deployBlock", "a fraction", 1.5),
        ("paymentTokenDecimals", "37", 37),
        ("paymentTokenDecimals", "null", None),
        ("jobRegistry", "of 19 bytes", "0x" + "11" * 19),
        ("jobRegistry", "without 0x", "11" * 20),
        ("paytoken", "of 32 bytes", "0x" + "11" * 32),
    ):
        refused("malformed", f"{key} {name}", key, text(**{key: value}))
    for key in CONTRACTS:
        refused("malformed", f"{key} the zero address", key, text(**{key: "0x" + "00" * 20}))
    return made
