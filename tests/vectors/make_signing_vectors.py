"""Writes the vectors for signatures, typed data, quotes and transactions.

    python tests/vectors/make_signing_vectors.py

Nothing of `common` is used: typed data, signatures and transactions come from eth-account, prices from exact
fractions. A vector is therefore evidence about `common` and not an echo of it. The files are kept simple for
readers in other languages: bytes are 0x hex, integers are decimal strings.
"""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_keys import keys
from eth_utils import keccak

HERE = Path(__file__).parent
ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
CHAIN_ID = 31337
SECRET = keccak(text="signing vectors: the signer")
SIGNER = Account.from_key(SECRET)


def at(name: str) -> bytes:
    return keccak(text=f"signing vectors: {name}")


def hexed(raw: bytes) -> str:
    return "0x" + raw.hex()


def write(name: str, about: str, **content: Any) -> None:
    text = json.dumps({"about": about, **content}, indent=1, ensure_ascii=True)
    (HERE / f"{name}.json").write_text(text + "\n", encoding="ascii")


# --- typed data --------------------------------------------------------------------------------------------

CONTRACTS = {name: at(name)[:20] for name in ("job registry", "provider registry", "ask registry", "token")}
DOMAINS: dict[str, dict[str, Any]] = {
    "jobs": {"name": "SVC Jobs", "version": "2", "contract": "job registry"},
    "providers": {"name": "SVC Providers", "version": "2", "contract": "provider registry"},
    "asks": {"name": "SVC Asks", "version": "2", "contract": "ask registry"},
    "token": {"name": "Dev Dollar", "version": "1", "contract": "token"},
    "escrow": {"name": "SVC Escrow", "version": "1"},
    "session": {"name": "SVC Session", "version": "1"},
    "results": {"name": "SVC Results", "version": "1"},
}
TYPES: dict[str, tuple[str, str]] = {
    "Order": (
        "jobs",
        "bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,"
        "uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt",
    ),
    "Cancel": ("jobs", "bytes32 jobId,uint64 issuedAt"),
    "Claim": ("jobs", "bytes32 jobId,uint64 issuedAt"),
    "Settle": ("jobs", "bytes32 jobId,uint32 completionTok,uint64 issuedAt"),
    "Fail": ("jobs", "bytes32 jobId,uint64 issuedAt"),
    "SetIdentity": ("providers", "bytes32 boxKey,bytes evidence,uint64 issuedAt"),
    "RequestCapacity": ("providers", "uint32 n,uint64 issuedAt"),
    "AskSnapshot": ("asks", "uint32 providerId,uint64 signedAt,Ask[] quotes"),
    "ReceiveWithAuthorization": (
        "token",
        "address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce",
    ),
    "Release": (
        "escrow",
        "bytes32 jobId,bytes seedWrap,bytes32 ctHash,bytes32 responsePubkey,uint64 issuedAt",
    ),
    "HandoverAuth": ("escrow", "bytes32 channelPubkey,uint64 issuedAt"),
    "SvcSession": ("session", "address address,string nonce"),
    "ResultKey": ("results", "string purpose"),
}
ASK = "uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut"
TYPICAL_INTEGERS = {
    "modelId": 7, "slaSecs": 3600, "rateIn": 150_000, "rateOut": 600_000, "unitsIn": 1_200, "unitsOut": 800,
    "designated": 3, "expiresAt": 1_800_003_600, "issuedAt": 1_800_000_000, "signedAt": 1_800_000_000,
    "completionTok": 512, "n": 4, "providerId": 3, "sla": 3600, "value": 123_456_789, "validAfter": 0,
    "validBefore": 1_800_003_601,
}  # fmt: skip


def fields(listing: str) -> list[dict[str, str]]:
    return [dict(zip(("type", "name"), field.split(" "), strict=True)) for field in listing.split(",")]


def value_of(kind: str, name: str, size: str) -> Any:
    """A field's value in the smallest, a typical or the greatest message."""
    if kind.startswith("uint"):
        return {"least": 0, "typical": TYPICAL_INTEGERS.get(name), "most": 2 ** int(kind[4:]) - 1}[size]
    if kind in {"bytes32", "address"}:
        length = 32 if kind == "bytes32" else 20
        return {"least": bytes(length), "typical": at(name)[:length], "most": b"\xff" * length}[size]
    if kind == "bytes":
        return {"least": b"", "typical": at(name)[:31] * 3, "most": bytes(range(256)) * 2}[size]
    if kind == "string":
        return {"least": "", "typical": at(name).hex()[:32], "most": "ключ ‖ 鍵 🔑 " * 16}[size]
    rows = {"least": 0, "typical": 2, "most": 64}[size]  # Ask[]
    return [
        {f["name"]: value_of(f["type"], f["name"], size) for f in fields(ASK)} | {"modelId": row}
        for row in range(rows)
    ]


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hexed(value)
    if isinstance(value, list):
        return [{name: plain(inner) for name, inner in row.items()} for row in value]
    return str(value) if isinstance(value, int) else value


def domain_of(name: str) -> dict[str, Any]:
    described = DOMAINS[name]
    domain = {"name": described["name"], "version": described["version"], "chainId": CHAIN_ID}
    if "contract" in described:
        domain["verifyingContract"] = hexed(CONTRACTS[described["contract"]])
    return domain


def typed_data() -> None:
    separators: dict[str, bytes] = {}
    cases: dict[str, list[dict[str, Any]]] = {}
    for type_name, (domain_name, listing) in TYPES.items():
        types = {type_name: fields(listing)} | ({"Ask": fields(ASK)} if "Ask[]" in listing else {})
        encoded = f"{type_name}({listing})" + (f"Ask({ASK})" if "Ask[]" in listing else "")
        cases[type_name] = []
        for size in ("least", "typical", "most"):
            message = {f["name"]: value_of(f["type"], f["name"], size) for f in fields(listing)}
            signable = encode_typed_data(domain_of(domain_name), types, message)
            signed = SIGNER.sign_message(signable)
            separators[domain_name] = bytes(signable.header)
            cases[type_name].append(
                {
                    "name": size,
                    "domain": domain_name,
                    "type": encoded,
                    "type_hash": hexed(keccak(text=encoded)),
                    "types": types,
                    "message": {name: plain(value) for name, value in message.items()},
                    "struct_hash": hexed(bytes(signable.body)),
                    "digest": hexed(bytes(signed.message_hash)),
                    "signature": hexed(bytes(signed.signature)),
                }
            )
    write(
        "eip712",
        "Every signed type in its domain, by type name. The signatures are RFC 6979 and the signer's.",
        signer=hexed(bytes.fromhex(SIGNER.address[2:])),
        secret=hexed(SECRET),
        domains={
            name: {
                "name": DOMAINS[name]["name"],
                "version": DOMAINS[name]["version"],
                "chainId": str(CHAIN_ID),
                "verifyingContract": domain_of(name).get("verifyingContract"),
                "separator": hexed(separators[name]),
            }
            for name in DOMAINS
        },
        cases=cases,
    )


# --- signatures --------------------------------------------------------------------------------------------


def signatures() -> None:
    accepted = []
    by_v: dict[int, tuple[bytes, bytes]] = {}
    for number in range(8):
        key = keys.PrivateKey(at(f"key {number}"))
        digest = at(f"digest {number}")
        signature = key.sign_msg_hash(digest)
        raw = signature.r.to_bytes(32, "big") + signature.s.to_bytes(32, "big") + bytes([27 + signature.v])
        by_v.setdefault(raw[64], (digest, raw))
        accepted.append(
            {
                "name": f"key {number}",
                "digest": hexed(digest),
                "signature": hexed(raw),
                "signer": hexed(key.public_key.to_canonical_address()),
            }
        )
    digest, good = by_v[27]
    r, s = good[:32], good[32:64]
    mirrored = (ORDER - int.from_bytes(s, "big")).to_bytes(32, "big")
    half = (ORDER // 2).to_bytes(32, "big")
    above_half = (ORDER // 2 + 1).to_bytes(32, "big")
    order = ORDER.to_bytes(32, "big")
    for name, edge in (("the greatest low s", half), ("the least s", (1).to_bytes(32, "big"))):
        parsed = keys.Signature(vrs=(0, int.from_bytes(r, "big"), int.from_bytes(edge, "big")))
        signer = parsed.recover_public_key_from_msg_hash(digest).to_canonical_address()
        accepted.append(
            {
                "name": name,
                "digest": hexed(digest),
                "signature": hexed(r + edge + b"\x1b"),
                "signer": hexed(signer),
            }
        )
    # EIP-2098 packs the parity into the top bit of s.
    compact = by_v[28][1][:32] + bytes([by_v[28][1][32] | 0x80]) + by_v[28][1][33:64]
    refused = [
        ("high_s", "mirrored s with the other v", r + mirrored + b"\x1c"),
        ("high_s", "the least high s", r + above_half + b"\x1b"),
        ("bad_v", "v 0", r + s + b"\x00"),
        ("bad_v", "v 1", r + s + b"\x01"),
        ("bad_v", "v 26", r + s + b"\x1a"),
        ("bad_v", "v 29", r + s + b"\x1d"),
        ("bad_v", "v 35", r + s + b"\x23"),
        ("bad_v", "v 255", r + s + b"\xff"),
        ("bad_length", "empty", b""),
        ("bad_length", "64 bytes, v left off", r + s),
        ("bad_length", "64 bytes, compact of EIP-2098", compact),
        ("bad_length", "66 bytes", good + b"\x00"),
        ("r_zero", "r 0", bytes(32) + s + b"\x1b"),
        ("r_not_below_n", "r n", order + s + b"\x1b"),
        ("r_not_below_n", "r 2^256 - 1", b"\xff" * 32 + s + b"\x1b"),
        ("s_zero", "s 0", r + bytes(32) + b"\x1b"),
        ("high_s", "s n", r + order + b"\x1b"),
        ("no_point", "r is the x of no point", (5).to_bytes(32, "big") + s + b"\x1b"),
    ]
    write(
        "signatures",
        "Signatures and who made them; and such as must be refused, each with the reason.",
        accepted=accepted,
        refused=[
            {"name": name, "refused": reason, "digest": hexed(digest), "signature": hexed(raw)}
            for reason, name, raw in refused
        ],
    )


# --- job ids and quotes ------------------------------------------------------------------------------------


def job_ids() -> None:
    pairs = [("typical", at("owner")[:20], at("c")), ("zeros", bytes(20), bytes(32))]
    pairs += [
        ("all ones", b"\xff" * 20, b"\xff" * 32),
        ("leading zeros", b"\0" * 19 + b"\1", b"\0" * 31 + b"\2"),
    ]
    write(
        "job_id",
        "job_id = keccak256(owner, 20 bytes, then c, 32 bytes).",
        cases=[
            {"name": name, "owner": hexed(owner), "c": hexed(c), "job_id": hexed(keccak(owner + c))}
            for name, owner, c in pairs
        ],
    )


def strings(**integers: int) -> dict[str, str]:
    return {name: str(value) for name, value in integers.items()}


def quotes() -> None:
    u32, u128 = 2**32 - 1, 2**128 - 1
    greatest_rate = u128 * 10**6 // u32  # the greatest that still fits with the most units
    orders = [
        ("typical", 150_000, 600_000, 1_200, 800, 250, 40_000),
        ("free order costs one unit", 0, 0, 0, 0, 250, 0),
        ("less than one unit is rounded up", 1, 0, 1, 0, 10_000, 5),
        ("exactly one unit", 10**6, 0, 1, 0, 9_999, 5),
        ("just above one unit", 10**6, 1, 1, 1, 9_999, 5),
        ("the two sides are rounded together", 500_000, 500_000, 1, 1, 300, 0),
        ("fee rounded down to nothing", 10**6, 0, 9_999, 0, 1, 0),
        ("fee of exactly one unit", 10**6, 0, 10_000, 0, 1, 0),
        ("no charges", 123_456_789, 987_654_321, u32, u32, 0, 0),
        ("most units", 1, 1, u32, u32, 250, u128),
        ("greatest rate with the most units", greatest_rate, 0, u32, 0, 250, u128),
        ("greatest cap", u128, 0, 10**6, 0, 10_000, u128),
        ("greatest cap out of two sides", u128 // 2, u128 // 2 + 1, 10**6, 10**6, 10_000, u128),
        ("output only", 0, 777_777, 0, 999, 100, 10),
    ]
    quoted, settlements = [], []
    for name, rate_in, rate_out, units_in, units_out, fee_bps, gas_fee in orders:

        def price(
            out: int, rate_in: int = rate_in, rate_out: int = rate_out, units_in: int = units_in
        ) -> int:
            return max(1, math.ceil(Fraction(rate_in * units_in + rate_out * out, 10**6)))

        terms = strings(
            rate_in=rate_in,
            rate_out=rate_out,
            units_in=units_in,
            units_out=units_out,
            fee_bps=fee_bps,
            gas_fee=gas_fee,
        )
        cap = price(units_out)
        fee = math.floor(Fraction(cap * fee_bps, 10_000))
        amount = cap + fee + gas_fee
        quoted.append({"name": name} | terms | strings(cap=cap, fee=fee, amount=amount))
        for completion_tok in sorted({0, units_out // 2, units_out}):
            cost = price(completion_tok)
            treasury = math.floor(Fraction(cost * fee_bps, 10_000)) + gas_fee
            settlements.append(
                {"name": f"{name}, {completion_tok} units"}
                | terms
                | strings(completion_tok=completion_tok, amount=amount, provider=cost, treasury=treasury)
                | strings(owner=amount - cost - treasury)
            )
    overflows = [
        ("one above the greatest cap", u128, 1, 10**6, 1),
        ("greatest rate plus one with the most units", greatest_rate + 1, 0, u32, 0),
        ("everything at its greatest", u128, u128, u32, u32),
    ]
    write(
        "quotes",
        "Prices: rates are per 10^6 units. What an order costs at most, how a settle shares it out, and orders"
        " whose cap does not fit a uint128.",
        quotes=quoted,
        settlements=settlements,
        refused=[
            {"name": name, "refused": "cap_overflow"}
            | strings(rate_in=rate_in, rate_out=rate_out, units_in=units_in, units_out=units_out)
            for name, rate_in, rate_out, units_in, units_out in overflows
        ],
    )


# --- transactions ------------------------------------------------------------------------------------------


def transactions() -> None:
    to = at("to")[:20]
    listed: list[tuple[str, int, int, int, int, int, bytes | None, int, bytes]] = [
        ("typical relay", CHAIN_ID, 41, 10**9, 3 * 10**9, 250_000, to, 0, at("data") * 10),
        ("everything zero", 1, 0, 0, 0, 0, bytes(20), 0, b""),
        ("integers of one byte", 1, 127, 1, 127, 127, to, 127, b"\x7f"),
        ("integers that need a length", 128, 128, 128, 128, 128, to, 128, b"\x80"),
        ("data of 55 bytes", CHAIN_ID, 255, 256, 256, 21_000, to, 10**18, b"\0" * 55),
        ("data of 56 bytes", CHAIN_ID, 256, 256, 65_535, 21_000, to, 10**18, b"\0" * 56),
        ("data of 256 bytes", CHAIN_ID, 65_536, 1, 2, 30_000_000, to, 1, b"\xff" * 256),
        ("deployment with 70000 bytes", CHAIN_ID, 2, 10**9, 10**10, 10**7, None, 0, b"\x5b" * 70_000),
        (
            "greatest values",
            2**53 - 1,
            2**64 - 2,
            2**128,
            2**256 - 1,
            2**64 - 1,
            b"\xff" * 20,
            2**256 - 1,
            b"\0",
        ),
    ]
    # Signatures whose r or s begins with a zero byte are one in 128: they must lose it.
    for name, nonce in short_scalars(to).items():
        listed.append((name, CHAIN_ID, nonce, 1, 2, 21_000, to, 0, b""))
    cases = []
    for name, chain_id, nonce, tip, fee_cap, gas, receiver, value, data in listed:
        signed = SIGNER.sign_transaction(
            transaction(chain_id, nonce, tip, fee_cap, gas, receiver, value, data)
        )
        raw = bytes(signed.raw_transaction)
        assert keccak(raw) == bytes(signed.hash)
        long = len(data) > 1_000
        cases.append(
            {
                "name": name,
                "chain_id": str(chain_id),
                "nonce": str(nonce),
                "max_priority_fee_per_gas": str(tip),
                "max_fee_per_gas": str(fee_cap),
                "gas": str(gas),
                "to": None if receiver is None else hexed(receiver),
                "value": str(value),
                "data": hexed(data[:1] if long else data),
                "data_repeated": str(len(data) if long else 1),
                "raw": None if long else hexed(raw),
                "hash": hexed(bytes(signed.hash)),
            }
        )
    write(
        "transactions",
        "EIP-1559 transactions signed by one key (RFC 6979). data_repeated: how often data stands in a row; raw"
        " is null where it would be long, and the hash tells.",
        secret=hexed(SECRET),
        sender=hexed(bytes.fromhex(SIGNER.address[2:])),
        cases=cases,
    )


def transaction(
    chain_id: int, nonce: int, tip: int, fee_cap: int, gas: int, to: bytes | None, value: int, data: bytes
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": 2, "chainId": chain_id, "nonce": nonce, "maxPriorityFeePerGas": tip, "maxFeePerGas": fee_cap,
        "gas": gas, "value": value, "data": data,
    }  # fmt: skip
    return described if to is None else described | {"to": to}


def short_scalars(to: bytes) -> dict[str, int]:
    found: dict[str, int] = {}
    nonce = 1_000
    while len(found) < 2:
        signed = SIGNER.sign_transaction(transaction(CHAIN_ID, nonce, 1, 2, 21_000, to, 0, b""))
        if signed.r < 2**248:
            found.setdefault("r with a leading zero byte", nonce)
        if signed.s < 2**248:
            found.setdefault("s with a leading zero byte", nonce)
        nonce += 1
    return found


if __name__ == "__main__":
    typed_data()
    signatures()
    job_ids()
    quotes()
    transactions()
