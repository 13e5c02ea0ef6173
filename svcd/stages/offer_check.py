"""Check the owner's signatures of a pending offer, because the chain has not checked them yet."""

from typing import Final

import attrs
import trio

from common import quotes
from common.address_book import AddressBook
from common.domains import Domains
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.secp256k1 import recover_address
from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader
from svcd.journal.book_row import PendingOffer

_FUNDS_TIMEOUT_S: Final = 0.4  # short, because a pending offer is valid for only about a second


@attrs.frozen(slots=True, eq=False)
class OfferChecker:
    """Checks pending offers. Without a node, `chain` is None and the owner's funds are not checked."""

    address_book: AddressBook
    chain: ChainReader | None
    domains: Domains = attrs.field(
        init=False, default=attrs.Factory(lambda self: Domains.of(self.address_book), takes_self=True)
    )

    async def find_fault(self, offer: PendingOffer) -> str | None:
        """Return the reason not to claim the offer, or None if no fault was found in time."""
        order = Order(**{field.name: getattr(offer, field.name) for field in attrs.fields(Order)})
        if quotes.derive_job_id(offer.owner, offer.c) != offer.job_id:
            return "job_id is not the hash of the owner and the commitment"
        if recover_address(self.domains.jobs.digest(order), offer.signature) != offer.owner:
            return "the order is not signed by its owner"
        cap = quotes.cap(offer.rate_in, offer.rate_out, offer.units_in, offer.units_out)
        if offer.amount < cap:
            return f"the amount is {offer.amount}, expected at least {cap}"
        payment = job_payment(offer.owner, self.address_book.job_registry, offer.amount, offer.expires_at, offer.job_id)
        if recover_address(self.domains.token.digest(payment), offer.auth_sig) != offer.owner:
            return f"the owner did not sign a payment of {offer.amount}"
        if self.chain is None:
            return None
        try:
            with trio.move_on_after(_FUNDS_TIMEOUT_S):
                return await self.chain.find_missing_funds(offer.owner, offer.job_id, offer.amount)
        except Unavailable:
            pass
        return None
