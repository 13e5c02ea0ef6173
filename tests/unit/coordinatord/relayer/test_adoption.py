"""Adopting transactions that a node lists in its blocks and the database lacks."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import msgspec
import pytest

from common.secp256k1 import Wallet
from common.transactions import Transaction
from coordinatord.chain.relayer import results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.adoption import adopt_forgotten_transactions
from coordinatord.chain.relayer.blocks import HeadBlock
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs, SignedVersion
from coordinatord.chain.relayer.signers import WalletSigner
from coordinatord.chain.rpc.client import RpcCall

CHAIN: Final = 31337
OURS: Final = Wallet(b"\x01" * 32)
ANOTHER: Final = Wallet(b"\x02" * 32)
TRANSACTION: Final = Transaction(CHAIN, 5, 1, 2, 21_000, b"\x11" * 20, 0, b"\xab\xcd")


def mined(wallet: Wallet) -> dict[str, Any]:
    """Return a transaction of the relayer, signed by `wallet`, in the form of a node's block."""
    signed = TRANSACTION.sign(wallet)
    compact, parity = wallet.sign_recoverable(TRANSACTION.digest)
    return {
        "from": "0x" + OURS.address.hex(),
        "to": "0x" + (b"\x11" * 20).hex(),
        "hash": "0x" + signed.hash.hex(),
        "nonce": hex(TRANSACTION.nonce),
        "input": "0xabcd",
        "gas": hex(TRANSACTION.gas),
        "value": "0x0",
        "maxFeePerGas": hex(TRANSACTION.max_fee_per_gas),
        "maxPriorityFeePerGas": hex(TRANSACTION.max_priority_fee_per_gas),
        "r": "0x" + compact[:32].hex(),
        "s": "0x" + compact[32:].hex(),
        "v": hex(parity),
    }


@attrs.frozen
class Node:
    """Fake node whose blocks contain one transaction."""

    transaction: dict[str, Any]

    async def batch(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw]:
        return [msgspec.Raw(json.dumps({"transactions": [self.transaction]}).encode()) for _ in calls]


class Term:
    """Fake term of the role, whose transactions do nothing."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Term"]:
        yield self


@pytest.mark.parametrize(("signer", "adopted"), [(OURS, {5}), (ANOTHER, set())], ids=["ours", "forged"])
async def test_only_bytes_that_the_account_signed_are_adopted(
    signer: Wallet, adopted: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[bytes] = []

    async def adopt(term: Term, chain_id: int, address: bytes, tx: PendingTx) -> None:
        stored.append(tx.latest.signed_bytes)

    async def carried_by(term: Term, tx_id: int, target: bytes, calls: object) -> None:
        pass

    monkeypatch.setattr(transactions_sql, "adopt_transaction", adopt)
    monkeypatch.setattr(results_sql, "record_carried_relays", carried_by)
    known = SignedVersion(b"\x07" * 32, b"\x02", max_fee=1, max_tip=1, is_self_transfer=False)
    missing = PendingTx(105, 5, TRANSACTION.to or b"", 21_000, [known], TRANSACTION.data)
    account = RelayerAccount(CHAIN, WalletSigner(OURS), PendingTxs([missing]), PendingTxs([]))
    head = HeadBlock(50, "0x", "0x", 0, 0, ())
    term: Any = Term()
    node: Any = Node(mined(signer))
    assert await adopt_forgotten_transactions(term, node, account, head, nonces={5}) == adopted
    assert (
        [version.signed_bytes for version in missing.versions[1:]]
        == stored
        == [TRANSACTION.sign(OURS).raw] * len(adopted)
    )


async def test_unknown_content_under_a_pending_nonce_is_not_adopted() -> None:
    known = SignedVersion(b"\x07" * 32, b"\x02", max_fee=1, max_tip=1, is_self_transfer=False)
    missing = PendingTx(105, 5, TRANSACTION.to or b"", 21_000, [known], b"other content")
    account = RelayerAccount(CHAIN, WalletSigner(OURS), PendingTxs([missing]), PendingTxs([]))
    term: Any = Term()
    node: Any = Node(mined(OURS))
    head = HeadBlock(50, "0x", "0x", 0, 0, ())
    assert await adopt_forgotten_transactions(term, node, account, head, nonces={5}) == set()
    assert missing.versions == [known]
