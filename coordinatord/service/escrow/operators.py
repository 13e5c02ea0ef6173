"""The operators that an instance knows: it signs as the first of them, and trusts what any of them signed."""

from typing import Self

import attrs

from common.domains import Domains
from common.messages.escrow import HandoverAuth, HandoverKeys
from common.secp256k1 import Wallet, recover
from coordinatord.secret import Secret


@attrs.frozen(slots=True)
class Operators:
    domains: Domains
    first: Wallet
    addresses: frozenset[bytes]

    @classmethod
    def of(cls, domains: Domains, keys: tuple[Secret, ...]) -> Self:
        wallets = [Wallet(bytes.fromhex(key.reveal())) for key in keys]
        return cls(domains, wallets[0], frozenset(wallet.address for wallet in wallets))

    def sign(self, message: HandoverAuth | HandoverKeys) -> bytes:
        return self.first.sign(self.domains.escrow.digest(message))

    def signer(self, message: HandoverAuth | HandoverKeys, signature: bytes) -> bytes | None:
        """Whose signature it is, known or not; None when it is no signature."""
        return recover(self.domains.escrow.digest(message), signature)
