"""The next version of a pending transaction: what it carries."""

from typing import Final

import pytest

from common.inclusion import rlp
from common.secp256k1 import Wallet
from coordinatord.relayer.account import RelayerAccount
from coordinatord.relayer.fees import FeeMarket
from coordinatord.relayer.pending import PendingTx, PendingTxs
from coordinatord.relayer.signers import WalletSigner
from coordinatord.relayer.signing import FILL_GAS, dearer
from coordinatord.relayer.transactions_sql import Content, Version

pytestmark = pytest.mark.anyio

GWEI: Final = 10**9
RELAY: Final = Content(b"\x11" * 20, b"calldata")
GAS: Final = 100_000


def account() -> RelayerAccount:
    market = FeeMarket(base_fee=50 * GWEI, tip=GWEI)
    return RelayerAccount(31337, WalletSigner(Wallet(b"\x01" * 32)), PendingTxs([]), PendingTxs([]), market=market)


def pending(*, fills: bool) -> PendingTx:
    version = Version(b"\x02" * 32, b"\x02", max_fee=2 * GWEI, max_tip=GWEI, fills=fills)
    return PendingTx(1, 7, RELAY.target, FILL_GAS if fills else GAS, [version])


def carried(version: Version | None) -> tuple[bool, int, bytes, bytes]:
    """(fills, gas, to, data): as the record says, and as the bytes do."""
    assert version is not None
    fields = rlp.decode_list(version.raw[1:])
    _chain, _nonce, _tip, _cap, gas, to, _value, data = fields[:8]
    assert isinstance(gas, bytes)
    assert isinstance(to, bytes)
    assert isinstance(data, bytes)
    return version.fills, int.from_bytes(gas, "big"), to, data


async def test_a_relay_whose_fee_is_raised_carries_the_same_again() -> None:
    of = account()
    assert carried(await dearer(of, pending(fills=False), RELAY)) == (False, GAS, RELAY.target, RELAY.calldata)


async def test_a_self_transfer_whose_fee_is_raised_stays_one() -> None:
    """Its relay went back to the queue: with these bytes it would be sent for a second time."""
    of = account()
    assert carried(await dearer(of, pending(fills=True), RELAY)) == (True, FILL_GAS, of.address, b"")


async def test_bytes_that_no_node_takes_become_a_self_transfer_with_their_nonce() -> None:
    of, tx = account(), pending(fills=False)
    tx.unsendable = True
    assert carried(await dearer(of, tx, RELAY)) == (True, FILL_GAS, of.address, b"")
