"""Nonces that the chain waits for and that no pending transaction has."""

from collections.abc import Sequence

import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs
from coordinatord.chain.relayer.repair import find_suspect_nonces
from coordinatord.chain.relayer.signers import WalletSigner


def txs(nonces: Sequence[int]) -> PendingTxs:
    return PendingTxs(PendingTx(nonce, nonce, b"", 1, []) for nonce in nonces)


def account(floor: int, pending: Sequence[int] = (), *, lost: Sequence[int] = (), pool_end: int = 0) -> RelayerAccount:
    signer = WalletSigner(Wallet(b"\x01" * 32))
    return RelayerAccount(1, signer, txs(pending), txs(lost), nonce_floor=floor, pool_nonces_end=pool_end)


@pytest.mark.parametrize(
    ("of", "following", "suspects"),
    [
        (account(5, [5, 6, 7]), 8, []),
        (account(42), 0, []),
        (account(5, [6, 8]), 9, [5, 7]),
        (account(5, pool_end=8), 6, []),
        (account(5, [7], pool_end=7), 9, [8]),
        (account(5, lost=[5], pool_end=6), 6, [5]),
    ],
    ids=["no gap", "new account", "gaps", "unknown bytes in a pool", "behind such bytes", "lost, with known bytes"],
)
def test_suspects_are_unused_nonces_without_a_transaction(
    of: RelayerAccount, following: int, suspects: list[int]
) -> None:
    assert find_suspect_nonces(of, following) == suspects


@pytest.mark.parametrize("pending", [[], [5, 7]])
def test_a_floor_far_too_low_makes_few_suspects(pending: list[int]) -> None:
    assert len(find_suspect_nonces(account(0, pending), 1_000_000)) == 256
