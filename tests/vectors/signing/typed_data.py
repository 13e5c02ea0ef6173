"""Every signed type in its domain, hashed and signed by eth-account."""

from typing import Any

from eth_account.messages import encode_typed_data
from eth_utils import keccak

from tests.vectors.signing.fixed import CHAIN_ID, SECRET, SIGNER, at, hexed
from tests.vectors.vector_file import Case

CONTRACTS = {name: at(name)[:20] for name in ("job registry", "provider registry", "ask registry", "token")}
DOMAINS: dict[str, dict[str, Any]] = {
    "jobs": {"name": "SVC Jobs", "version": "2", "contract": "job registry"},
    "providers": {"name": "SVC Providers", "version": "2", "contract": "provider registry"},
    "asks": {"name": "SVC Asks", "version": "2", "contract": "ask registry"},
    "token": {"name": "Dev Dollar", "version": "1", "contract": "token"},
    "escrow": {"name": "SVC Escrow", "version": "1"},
    "session": {"name": "SVC Session", "version": "1"},
    "results": {"name": "SVC Results", "version": "1"},
    "tabs": {"name": "SVC Tabs", "version": "1", "contract": "job registry"},
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
    "HandoverKeys": ("escrow", "bytes32 channelPubkey,uint64 issuedAt,bytes keys"),
    "SvcSession": ("session", "address address,string nonce"),
    "ResultKey": ("results", "string purpose"),
    "TabKey": ("tabs", "address key,uint32 providerId,uint64 expiresAt"),
    "TabVoucher": (
        "tabs",
        "bytes32 jobId,uint32 number,uint32 allowance,uint32 acknowledged,bytes32 chain",
    ),
}
ASK = "uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut"
TYPICAL_INTEGERS = {
    "modelId": 7, "slaSecs": 3600, "rateIn": 150_000, "rateOut": 600_000, "unitsIn": 1_200, "unitsOut": 800,
    "designated": 3, "expiresAt": 1_800_003_600, "issuedAt": 1_800_000_000, "signedAt": 1_800_000_000,
    "completionTok": 512, "n": 4, "providerId": 3, "sla": 3600, "value": 123_456_789, "validAfter": 0,
    "validBefore": 1_800_003_601, "number": 4, "allowance": 900, "acknowledged": 512,
}  # fmt: skip


def fields(listing: str) -> list[dict[str, str]]:
    return [dict(zip(("type", "name"), field.split(" "), strict=True)) for field in listing.split(",")]


def value_of(kind: str, name: str, size: str) -> Any:
    """Return a field's value for the smallest, a typical or the largest message."""
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
        {f["name"]: value_of(f["type"], f["name"], size) for f in fields(ASK)} | {"modelId": row} for row in range(rows)
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


def cases() -> list[Case]:
    made = []
    for type_name, (domain_name, listing) in TYPES.items():
        types = {type_name: fields(listing)} | ({"Ask": fields(ASK)} if "Ask[]" in listing else {})
        encoded = f"{type_name}({listing})" + (f"Ask({ASK})" if "Ask[]" in listing else "")
        domain = domain_of(domain_name)
        for size in ("least", "typical", "most"):
            message = {f["name"]: value_of(f["type"], f["name"], size) for f in fields(listing)}
            signable = encode_typed_data(domain, types, message)
            signed = SIGNER.sign_message(signable)
            made.append(
                {
                    "name": f"{type_name}, {size}",
                    "primary_type": type_name,
                    "domain_name": domain_name,
                    "domain": domain | {"chainId": str(CHAIN_ID)},
                    "separator": hexed(bytes(signable.header)),
                    "type": encoded,
                    "type_hash": hexed(keccak(text=encoded)),
                    "types": types,
                    "message": {name: plain(value) for name, value in message.items()},
                    "struct_hash": hexed(bytes(signable.body)),
                    "digest": hexed(bytes(signed.message_hash)),
                    "signature": hexed(bytes(signed.signature)),
                    "secret": hexed(SECRET),
                    "signer": SIGNER.address.lower(),
                }
            )
    return made
