"""Make the vectors of block contents: transactions of types 0 to 4 and receipts, both in a node's JSON and as the bytes
that a header's roots commit to.

    python -m tests.vectors.generate_block_contents

Uses nothing from `common`. eth-account builds, signs and hashes transactions, and the RLP library encodes receipts.
"""

from collections.abc import Mapping
from typing import Any

import rlp
from eth_utils import to_checksum_address

from tests.vectors.signing.fixed import CHAIN_ID, SIGNER, at, hexed
from tests.vectors.vector_file import FOLDER, Case, text_of

TO, LISTED, OTHER = (to_checksum_address(at(name)[:20]) for name in ("receiver", "listed", "bystander"))
ACCESS = [
    {"address": LISTED, "storageKeys": [hexed(bytes(31) + b"\x01"), hexed(at("slot"))]},
    {"address": OTHER, "storageKeys": []},
]
CALL = {"nonce": 3, "gas": 90_000, "to": TO, "value": 10**18, "data": "0x" + "00ff" * 40, "chainId": CHAIN_ID}
FEES = {"maxFeePerGas": 30 * 10**9, "maxPriorityFeePerGas": 10**9}
PRICE = {"gasPrice": 20 * 10**9}
BLOBS = {"maxFeePerBlobGas": 7, "blobVersionedHashes": [hexed(b"\x01" + at(f"blob {n}")[1:]) for n in range(2)]}


def authorised(chain_id: int, nonce: int) -> Any:
    return SIGNER.sign_authorization({"chainId": chain_id, "address": LISTED, "nonce": nonce})


TRANSACTIONS: dict[str, dict[str, Any]] = {
    "type 0, its chain in v": {**CALL, **PRICE},
    "type 0, of before chains were signed": {
        name: value for name, value in (CALL | PRICE).items() if name != "chainId"
    },
    "type 0 that deploys": {**CALL, **PRICE, "to": "", "value": 0, "nonce": 0},
    "type 1 with an access list": {**CALL, **PRICE, "type": 1, "accessList": ACCESS},
    "type 2 without an access list": {**CALL, **FEES, "type": 2, "accessList": []},
    "type 2 with one": {**CALL, **FEES, "type": 2, "accessList": ACCESS, "data": "0x"},
    "type 3 with two blobs": {**CALL, **FEES, **BLOBS, "type": 3, "accessList": ACCESS},
    "type 4 with authorisations for one chain and for all": {
        **CALL,
        **FEES,
        "type": 4,
        "accessList": ACCESS,
        "authorizationList": [authorised(CHAIN_ID, 4), authorised(0, 0)],
    },
}


def told(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a transaction as a node returns it, with the fields that nodes add."""
    made = SIGNER.sign_transaction(dict(sent))
    kind = sent.get("type", 0)
    answer: dict[str, Any] = {
        "blockHash": hexed(at("block")),
        "blockNumber": "0x10",
        "transactionIndex": "0x0",
        "from": SIGNER.address.lower(),
        "type": hex(kind),
        "hash": hexed(made.hash),
        "nonce": hex(sent["nonce"]),
        "gas": hex(sent["gas"]),
        "to": sent["to"].lower() or None,
        "value": hex(sent["value"]),
        "input": sent["data"],
        "gasPrice": hex(sent.get("gasPrice", 21 * 10**9)),
        "v": hex(made.v),
        "r": hex(made.r),
        "s": hex(made.s),
    }
    if "chainId" in sent:
        answer["chainId"] = hex(sent["chainId"])
    for name in ("maxFeePerGas", "maxPriorityFeePerGas", "maxFeePerBlobGas"):
        if name in sent:
            answer[name] = hex(sent[name])
    if kind:
        answer |= {"yParity": hex(made.v)}
        answer["accessList"] = [{**each, "address": each["address"].lower()} for each in sent["accessList"]]
    if kind == 3:
        answer["blobVersionedHashes"] = sent["blobVersionedHashes"]
    if kind == 4:
        answer["authorizationList"] = [
            {
                "chainId": hex(each.chain_id),
                "address": hexed(bytes(each.address)),
                "nonce": hex(each.nonce),
                "yParity": hex(each.y_parity),
                "r": hex(each.r),
                "s": hex(each.s),
            }
            for each in sent["authorizationList"]
        ]
    return {"transaction": answer, "raw": hexed(made.raw_transaction)}


LOG = {"address": LISTED.lower(), "topics": [hexed(at("topic")), hexed(bytes(32))], "data": hexed(at("data") * 3)}


def receipt(kind: int, logs: list[dict[str, Any]], **outcome: str) -> dict[str, Any]:
    answer = {
        "type": hex(kind),
        "transactionHash": hexed(at("sent")),
        "cumulativeGasUsed": "0x5208",
        "gasUsed": "0x5208",
        "logsBloom": "0x" + "10" * 256,
        "logs": logs,
        **outcome,
    }
    first = int(outcome["status"], 16) if "status" in outcome else bytes.fromhex(outcome["root"][2:])
    rows = [
        [
            bytes.fromhex(each["address"][2:]),
            [bytes.fromhex(topic[2:]) for topic in each["topics"]],
            bytes.fromhex(each["data"][2:]),
        ]
        for each in logs
    ]
    raw: bytes = rlp.encode([first, 0x5208, b"\x10" * 256, rows])
    return {"receipt": answer, "raw": hexed(bytes([kind]) * bool(kind) + raw)}


def changed(name: str, **values: Any) -> dict[str, Any]:
    made = told(TRANSACTIONS[name])
    return {"transaction": {key: value for key, value in (made["transaction"] | values).items() if value is not ...}}


def refused() -> dict[str, tuple[str, dict[str, Any]]]:
    four, other = "type 4 with authorisations for one chain and for all", "0x" + "99" * 20
    listed = told(TRANSACTIONS[four])["transaction"]["authorizationList"]
    return {
        "hash of other fields": ("hash", changed("type 2 with one", value="0x1")),
        "another address in an access list": (
            "hash",
            changed("type 1 with an access list", accessList=[{"address": other, "storageKeys": []}]),
        ),
        "access list left out": ("accessList", changed("type 1 with an access list", accessList=...)),
        "blob hash of another length": (
            "blobVersionedHashes",
            changed("type 3 with two blobs", blobVersionedHashes=["0x01"]),
        ),
        "blob fee left out": ("maxFeePerBlobGas", changed("type 3 with two blobs", maxFeePerBlobGas=...)),
        "an authorisation fewer": ("hash", changed(four, authorizationList=listed[:1])),
        "authorisation for another address": (
            "hash",
            changed(four, authorizationList=[listed[0] | {"address": other}, listed[1]]),
        ),
        "deposit of a rollup": ("type", changed("type 2 with one", type="0x7e")),
        "type of a later fork": ("type", changed("type 2 with one", type="0x5")),
    }


def cases() -> list[Case]:
    receipts = {
        f"receipt of type {kind}": receipt(kind, [LOG] * (kind % 3), status=hex(kind % 2)) for kind in range(5)
    } | {"receipt of before there was a status": receipt(0, [LOG], root=hexed(at("state")))}
    return [
        *({"name": name, **told(each)} for name, each in TRANSACTIONS.items()),
        *({"name": name, **each} for name, each in receipts.items()),
        *({"name": name, **each, "refused": why} for name, (why, each) in refused().items()),
    ]


def files() -> dict[str, str]:
    about = (
        "Transactions and receipts as nodes tell them, and their bytes. What is refused, with the field that is named."
    )
    return {"block_contents.json": text_of(about, cases())}


if __name__ == "__main__":
    for file, text in files().items():
        (FOLDER / file).write_text(text, "utf-8")
