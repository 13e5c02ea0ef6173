"""Derive the wallets of the devnet from anvil's public mnemonic, so that every run has the same wallets.

The keys are public. Never send anything of value to these addresses on another chain.
"""

import hashlib
from typing import Final

import attrs
from eth_account import Account
from nacl.public import PrivateKey

from common.key_derivation import escrow_key
from devnet.anvil import FUNDED_ACCOUNT_COUNT, MNEMONIC

_ROLES: Final = (
    *("admin", "treasury"),
    *("relayer", "relayer"),  # two, for tests with two coordinators that share a database
    *("client",) * 4,
    *("provider",) * 3,
    "operator",  # the escrow key is derived from the operator's key
)


@attrs.frozen
class DevWallet:
    """A wallet and its role in the devnet's market."""

    role: str
    address: str
    private_key: str = attrs.field(repr=False)

    @property
    def box_secret(self) -> bytes:
        """X25519 secret with which a provider opens designated orders. The secret is the same in every run."""
        return hashlib.sha256(b"devnet box key" + bytes.fromhex(self.private_key[2:])).digest()

    @property
    def box_key(self) -> bytes:
        return bytes(PrivateKey(self.box_secret).public_key)


@attrs.frozen
class DevWallets:
    """All wallets of the devnet, in the order of their index in the mnemonic."""

    wallets: tuple[DevWallet, ...]

    def with_role(self, role: str) -> list[DevWallet]:
        return [wallet for wallet in self.wallets if wallet.role == role]

    @property
    def admin(self) -> DevWallet:
        return self.with_role("admin")[0]

    @property
    def demo_provider(self) -> DevWallet:
        """Wallet of the devnet's own svcd. Other programs may use the other providers' wallets."""
        return self.with_role("provider")[0]

    @property
    def treasury(self) -> DevWallet:
        return self.with_role("treasury")[0]

    @property
    def operator(self) -> DevWallet:
        return self.with_role("operator")[0]

    @property
    def escrow_key(self) -> bytes:
        """X25519 key to which clients seal open orders. The coordinator derives this key from the operator's key."""
        return escrow_key(bytes.fromhex(self.operator.private_key[2:])).public.raw


def derive_wallets() -> DevWallets:
    assert len(_ROLES) <= FUNDED_ACCOUNT_COUNT  # noqa: S101 - compares constants
    Account.enable_unaudited_hdwallet_features()  # acceptable, because these keys are public
    return DevWallets(tuple(_derive_wallet(index, role) for index, role in enumerate(_ROLES)))


def _derive_wallet(index: int, role: str) -> DevWallet:
    account = Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}")
    return DevWallet(role, account.address, "0x" + bytes(account.key).hex())
