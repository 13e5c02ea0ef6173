"""EIP-1559 transactions signed by eth-account."""

from typing import Any

from eth_utils import keccak

from tests.vectors.signing.fixed import CHAIN_ID, SECRET, SIGNER, at, hexed
from tests.vectors.vector_file import Case

# chain id, nonce (at most 2^53 - 1, because of JavaScript), tip, fee cap, gas, to, value, data
Listed = tuple[int, int, int, int, int, bytes | None, int, bytes]


def cases() -> list[Case]:
    to = at("to")[:20]
    listed = [
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
            2**53 - 1,
            2**128,
            2**256 - 1,
            2**64 - 1,
            b"\xff" * 20,
            2**256 - 1,
            b"\0",
        ),
    ]
    # One signature in 128 has an r or s that begins with a zero byte, which RLP must drop.
    for name, nonce in short_scalars(to).items():
        listed.append((name, CHAIN_ID, nonce, 1, 2, 21_000, to, 0, b""))
    made = []
    for name, chain_id, nonce, tip, fee_cap, gas, receiver, value, data in listed:
        signed = SIGNER.sign_transaction(transaction((chain_id, nonce, tip, fee_cap, gas, receiver, value, data)))
        raw = bytes(signed.raw_transaction)
        assert keccak(raw) == bytes(signed.hash)
        long = len(data) > 1_000
        made.append(
            {
                "name": name,
                "secret": hexed(SECRET),
                "sender": SIGNER.address.lower(),
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
    return made


def transaction(listed: Listed) -> dict[str, Any]:
    chain_id, nonce, tip, fee_cap, gas, to, value, data = listed
    described: dict[str, Any] = {
        "type": 2, "chainId": chain_id, "nonce": nonce, "maxPriorityFeePerGas": tip, "maxFeePerGas": fee_cap,
        "gas": gas, "value": value, "data": data,
    }  # fmt: skip
    return described if to is None else described | {"to": to}


def short_scalars(to: bytes) -> dict[str, int]:
    found: dict[str, int] = {}
    nonce = 1_000
    while len(found) < 2:
        signed = SIGNER.sign_transaction(transaction((CHAIN_ID, nonce, 1, 2, 21_000, to, 0, b"")))
        if signed.r < 2**248:
            found.setdefault("r with a leading zero byte", nonce)
        if signed.s < 2**248:
            found.setdefault("s with a leading zero byte", nonce)
        nonce += 1
    return found
