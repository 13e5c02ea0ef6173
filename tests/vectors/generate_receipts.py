"""Make the vectors of receipts: a small chain of blocks, and the facts that a receipt proves about them.

    python -m tests.vectors.generate_receipts

Uses nothing from `common`. Ethereum's own libraries provide RLP, ABI and signatures, and the code below builds tries as
in the Yellow Paper. The vectors are therefore independent evidence about `common`.
"""

import json
from typing import Any

import rlp
from eth_abi import encode as abi_encode
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from tests.vectors.signing.fixed import CHAIN_ID, SIGNER, at, hexed
from tests.vectors.vector_file import FOLDER, Case, text_of

REGISTRY, TOKEN, OTHER = (at(name)[:20] for name in ("job registry", "token", "bystander"))
OWNER = bytes.fromhex(SIGNER.address[2:])
TERMS = {
    "c": at("commitment"), "modelId": 3, "slaSecs": 3600, "rateIn": 150_000, "rateOut": 2**80, "unitsIn": 4000,
    "unitsOut": 700, "designated": 0, "expiresAt": 1_900_000_000,
}  # fmt: skip
KINDS = ["bytes32", "uint32", "uint32", "uint128", "uint128", "uint32", "uint32", "uint32", "uint64"]
JOB = keccak(OWNER + TERMS["c"])  # type: ignore[operator]
FEE_BPS, GAS_FEE, USED = 250, 1000, 321
TASK, RESULT = "bafkreitask", "bafkreiresult"


def price(units_out: int) -> int:
    return -(-(int(TERMS["rateIn"]) * int(TERMS["unitsIn"]) + int(TERMS["rateOut"]) * units_out) // 10**6)  # type: ignore[call-overload]


def with_fees(paid: int) -> int:
    return paid + paid * FEE_BPS // 10_000 + GAS_FEE


AMOUNT = with_fees(price(700))


def signed(primary: str, fields: list[tuple[str, str]], domain: dict[str, Any], message: dict[str, Any]) -> bytes:
    types = {primary: [{"name": name, "type": kind} for kind, name in fields]}
    typed = encode_typed_data(domain_data=domain, message_types=types, message_data=message)
    return bytes(SIGNER.sign_message(typed).signature)


ORDER_SIGNATURE = signed(
    "Order",
    list(zip(KINDS, TERMS, strict=True)),
    {"name": "SVC Jobs", "version": "2", "chainId": CHAIN_ID, "verifyingContract": hexed(REGISTRY)},
    TERMS,
)
PAYMENT_SIGNATURE = signed(
    "ReceiveWithAuthorization",
    [("address", "from"), ("address", "to"), ("uint256", "value"), ("uint256", "validAfter"),
     ("uint256", "validBefore"), ("bytes32", "nonce")],
    {"name": "Dev Dollar", "version": "1", "chainId": CHAIN_ID, "verifyingContract": hexed(TOKEN)},
    {"from": SIGNER.address, "to": hexed(REGISTRY), "value": AMOUNT, "validAfter": 0,
     "validBefore": int(TERMS["expiresAt"]) + 1, "nonce": JOB},  # type: ignore[call-overload]
)  # fmt: skip


# --- a trie, as the Yellow Paper's appendix D has it ----------------------------------------------------------


def nibbles(key: bytes) -> list[int]:
    return [int(digit, 16) for digit in key.hex()]


def hex_prefix(path: list[int], leaf: bool) -> bytes:
    head = [2 * leaf + 1] if len(path) % 2 else [2 * leaf, 0]
    return bytes.fromhex("".join(f"{digit:x}" for digit in head + path))


def node(pairs: list[tuple[list[int], bytes]]) -> Any:
    if len(pairs) == 1:
        return [hex_prefix(pairs[0][0], True), pairs[0][1]]
    common = 0
    while all(len(path) > common and path[common] == pairs[0][0][common] for path, _ in pairs):
        common += 1
    if common:
        below = [(path[common:], value) for path, value in pairs]
        return [hex_prefix(pairs[0][0][:common], False), reference(node(below))]
    branch: list[Any] = []
    for digit in range(16):
        below = [(path[1:], value) for path, value in pairs if path and path[0] == digit]
        branch.append(reference(node(below)) if below else b"")
    return [*branch, next((value for path, value in pairs if not path), b"")]


def reference(made: Any) -> Any:
    return made if len(rlp.encode(made)) < 32 else keccak(rlp.encode(made))


def proof(pairs: list[tuple[list[int], bytes]], path: list[int], top: bool = True) -> list[str]:
    encoded = rlp.encode(node(pairs))
    own = [hexed(encoded)] if top or len(encoded) >= 32 else []
    if len(pairs) == 1 or not path:
        return own
    common = 0
    while all(len(each) > common and each[common] == path[common] for each, _ in pairs):
        common += 1
    if common:
        return own + proof([(each[common:], value) for each, value in pairs], path[common:], False)
    return own + proof([(each[1:], value) for each, value in pairs if each[:1] == path[:1]], path[1:], False)


def under_root(values: list[bytes], index: int) -> tuple[bytes, list[str]]:
    pairs = [(nibbles(rlp.encode(n)), value) for n, value in enumerate(values)]
    return keccak(rlp.encode(node(pairs))), proof(pairs, nibbles(rlp.encode(index)))


# --- logs, blocks, steps --------------------------------------------------------------------------------------

JOB_POSTED = (
    "JobPosted(bytes32,address,uint32,bytes32,uint32,uint128,uint128,uint32,uint32,uint32,uint64,uint16,uint128,"
    "string,bytes)"
)


def word(value: int | bytes) -> bytes:
    return (value if isinstance(value, bytes) else value.to_bytes(32, "big")).rjust(32, b"\0")


def log(address: bytes, signature: str, topics: list[Any], kinds: list[str], values: list[Any]) -> list[Any]:
    return [address, [keccak(text=signature), *map(word, topics)], abi_encode(kinds, values)]


POSTED = log(
    REGISTRY,
    JOB_POSTED,
    [JOB, OWNER, TERMS["modelId"]],
    [kind for kind, name in zip(KINDS, TERMS, strict=True) if name != "modelId"]
    + ["uint16", "uint128", "string", "bytes"],
    [value for name, value in TERMS.items() if name != "modelId"] + [FEE_BPS, GAS_FEE, TASK, PAYMENT_SIGNATURE],
)
CLAIMED = log(REGISTRY, "JobClaimed(bytes32,uint32,uint64)", [JOB, 7], ["uint64"], [1_800_000_012])
COLLECTED = [
    log(TOKEN, "AuthorizationUsed(address,bytes32)", [OWNER, JOB], [], []),
    log(TOKEN, "Transfer(address,address,uint256)", [OWNER, REGISTRY], ["uint256"], [AMOUNT]),
]
COST = price(USED)
SHARE = COST * FEE_BPS // 10_000 + GAS_FEE
SETTLED = log(
    REGISTRY,
    "JobSettled(bytes32,uint32,uint32,uint256,uint256,uint256,string)",
    [JOB, 7],
    ["uint32", "uint256", "uint256", "uint256", "string"],
    [USED, COST, SHARE, AMOUNT - COST - SHARE, RESULT],
)
CANCELLED = log(REGISTRY, "JobCancelled(bytes32)", [JOB], [], [])
FAILED = log(REGISTRY, "JobFailed(bytes32,uint32)", [JOB, 7], [], [])
NOISE = log(OTHER, "Noise(uint256)", [], ["uint256"], [1])


def receipt(logs: list[Any], kind: int, gas: int, status: int = 1) -> bytes:
    encoded: bytes = rlp.encode([status, gas, bytes(256), logs])
    return bytes([kind]) * bool(kind) + encoded


def step(  # noqa: PLR0917 - a block in a line
    event: str, logs: list[Any], at_log: int, number: int, size: int, index: int, fields: int
) -> dict[str, Any]:
    """Return the step of a block with `size` transactions. The header has the fields of its fork."""
    transactions = [bytes([2]) + rlp.encode([n, number, at(f"transaction {n}") * 4]) for n in range(size)]
    receipts = [receipt([NOISE] * (n % 3), n % 5, 21_000 * (n + 1)) for n in range(size)]
    receipts[index] = receipt(logs, 2, 21_000 * (index + 1))
    (sent_root, sent), (told_root, told) = under_root(transactions, index), under_root(receipts, index)
    header = [
        at("parent"), at("uncles"), OTHER, at("state"), sent_root, told_root, bytes(256), 0, number, 30_000_000,
        21_000 * size, 1_800_000_000 + number, b"vectors", at("mix"), bytes(8),
        7, at("withdrawals"), 0, 0, at("beacon"), at("requests"),
    ]  # fmt: skip
    raw: bytes = rlp.encode(header[:fields])
    return {
        "event": event, "block": hexed(keccak(raw)), "header": hexed(raw), "index": str(index), "log": str(at_log),
        "transaction": hexed(keccak(transactions[index])), "transaction_proof": sent, "receipt_proof": told,
    }  # fmt: skip


SNAKE = ("c", "model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at")


def document(end: dict[str, str], steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "v": 1,
        "job_id": hexed(JOB),
        "owner": hexed(OWNER),
        "market": {
            "chain_id": str(CHAIN_ID), "job_registry": hexed(REGISTRY), "token": hexed(TOKEN),
            "token_name": "Dev Dollar", "token_version": "1",
        },
        "order": {
            name: hexed(value) if isinstance(value, bytes) else str(value)
            for name, value in zip(SNAKE, TERMS.values(), strict=True)
        },
        "fees": {"fee_bps": str(FEE_BPS), "gas_fee": str(GAS_FEE)},
        "task_cid": TASK,
        "order_signature": hexed(ORDER_SIGNATURE),
        "payment": {"amount": str(AMOUNT), "signature": hexed(PAYMENT_SIGNATURE)},
        "provider_id": "7" if len(steps) == 3 else None,
        "end": end,
        "steps": steps,
    }  # fmt: skip


def posted(fields: int = 21, size: int = 1) -> dict[str, Any]:
    return step("JobPosted", [NOISE, POSTED], 1, 10, size, size - 1, fields)


def claimed(size: int = 200) -> dict[str, Any]:
    return step("JobClaimed", [CLAIMED, *COLLECTED], 0, 12, size, size // 2, 21)


SHARES = {
    "event": "JobSettled", "completion_tok": str(USED), "cost": str(COST), "treasury_share": str(SHARE),
    "refund": str(AMOUNT - COST - SHARE), "result_cid": RESULT,
}  # fmt: skip


def cases() -> list[Case]:
    settled = document(SHARES, [posted(), claimed(), step("JobSettled", [SETTLED], 0, 13, 3, 0, 21)])
    made = {
        "settled, in blocks of 1, 200 and 3 transactions": settled,
        "cancelled, under headers without base fee": document(
            {"event": "JobCancelled"}, [posted(15, 17), step("JobCancelled", [CANCELLED], 0, 11, 2, 1, 15)]
        ),
        "failed, in one block after another of 130": document(
            {"event": "JobFailed"}, [posted(20, 130), claimed(130), step("JobFailed", [FAILED], 0, 13, 129, 128, 17)]
        ),
    }
    refused = {
        "claim that collected nothing": (
            "market.token",
            document(SHARES, [posted(), step("JobClaimed", [CLAIMED], 0, 12, 1, 0, 21), settled["steps"][2]]),
        ),
        "steps in another order than the chain's": (
            "steps.2",
            document(SHARES, [posted(), claimed(), step("JobSettled", [SETTLED], 0, 11, 1, 0, 21)]),
        ),
        "transaction that failed": ("steps.2.log", document(SHARES, [posted(), claimed(), failing()])),
        "log of another contract": (
            "market.job_registry",
            document(SHARES, [posted(), claimed(), step("JobSettled", [[OTHER, *SETTLED[1:]]], 0, 13, 1, 0, 21)]),
        ),
    }
    return [
        *({"name": name, "receipt": json.dumps(each)} for name, each in made.items()),
        *({"name": name, "receipt": json.dumps(each), "refused": why} for name, (why, each) in refused.items()),
    ]


def failing() -> dict[str, Any]:
    told = receipt([SETTLED], 2, 21_000, status=0)
    root, told_proof = under_root([told], 0)
    made = step("JobSettled", [SETTLED], 0, 13, 1, 0, 21)
    header = rlp.decode(bytes.fromhex(made["header"][2:]))
    header[5] = root
    raw = rlp.encode(header)
    return made | {"header": hexed(raw), "block": hexed(keccak(raw)), "receipt_proof": told_proof}


def files() -> dict[str, str]:
    about = "Receipts as JSON texts. What is refused, with the field that is named."
    return {"receipt.json": text_of(about, cases())}


if __name__ == "__main__":
    for file, text in files().items():
        (FOLDER / file).write_text(text, "utf-8")
