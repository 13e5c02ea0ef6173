"""Sign the relayer account's transactions, in nonce order."""

from collections.abc import Sequence
from typing import Final, Protocol

import anyio
import attrs

from common.secp256k1 import Wallet
from common.transactions import SignedTransaction, Transaction
from coordinatord.chain.relayer.outside_signer import SignerUnavailable

MAX_PARALLEL_SIGNATURES: Final = 8


class AccountSigner(Protocol):
    """Signer for the relayer's account."""

    @property
    def address(self) -> bytes: ...
    async def sign(self, transaction: Transaction) -> SignedTransaction: ...


@attrs.frozen(slots=True)
class WalletSigner:
    """Signer with a key in this process."""

    _wallet: Wallet = attrs.field(repr=False)

    @property
    def address(self) -> bytes:
        return self._wallet.address

    async def sign(self, transaction: Transaction) -> SignedTransaction:
        return transaction.sign(self._wallet)


async def sign_in_order(
    signer: AccountSigner, transactions: Sequence[Transaction]
) -> tuple[list[SignedTransaction], SignerUnavailable | None]:
    """Return the signatures of the leading transactions, and the failure that stopped the rest, if any.

    Several signatures are requested concurrently. Signatures after a failed one are discarded, so that nonces have no
    gap.
    """
    signed: list[SignedTransaction] = []
    for first in range(0, len(transactions), MAX_PARALLEL_SIGNATURES):
        found = await _sign_together(signer, transactions[first : first + MAX_PARALLEL_SIGNATURES])
        for answer in found:
            if isinstance(answer, SignerUnavailable):
                return signed, answer
            signed.append(answer)
    return signed, None


async def _sign_together(
    signer: AccountSigner, transactions: Sequence[Transaction]
) -> list[SignedTransaction | SignerUnavailable]:
    found: dict[int, SignedTransaction | SignerUnavailable] = {}

    async def one(place: int, transaction: Transaction) -> None:
        try:
            found[place] = await signer.sign(transaction)
        except SignerUnavailable as error:
            found[place] = error

    async with anyio.create_task_group() as tasks:
        for place, transaction in enumerate(transactions):
            tasks.start_soon(one, place, transaction)
    return [found[place] for place in range(len(transactions))]
