"""Check of a pending offer against what its owner signed. No other party has checked it."""

from typing import Final

import attrs
import trio

from common import quotes
from common.address_book import AddressBook
from common.domains import Domains
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.secp256k1 import recover
from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader
from svcd.journal.book_row import PendingOffer

_LOOK_AT_FUNDS: Final = 0.4  # seconds: an offer of a job whose post is under way stands for one


@attrs.frozen(slots=True, eq=False)
class OfferCheck:
    """`chain`: None where there is no node to ask for the owner's funds; the claim collects them in any case."""

    book: AddressBook
    chain: ChainReader | None
    domains: Domains = attrs.field(
        init=False, default=attrs.Factory(lambda self: Domains.of(self.book), takes_self=True)
    )

    async def fault(self, offer: PendingOffer) -> str | None:
        """Why it must not be claimed, in words; None when all is well, as far as can be seen in half a second."""
        order = Order(**{field.name: getattr(offer, field.name) for field in attrs.fields(Order)})
        if quotes.derive_job_id(offer.owner, offer.c) != offer.job_id:
            return "job_id must be the hash of owner and commitment"
        if recover(self.domains.jobs.digest(order), offer.signature) != offer.owner:
            return "the order is not signed by its owner"
        cap = quotes.cap(offer.rate_in, offer.rate_out, offer.units_in, offer.units_out)
        if offer.amount < cap:
            return f"the amount must be at least {cap}, and is {offer.amount}"
        payment = job_payment(offer.owner, self.book.job_registry, offer.amount, offer.expires_at, offer.job_id)
        if recover(self.domains.token.digest(payment), offer.auth_sig) != offer.owner:
            return f"the payment is not signed by the owner for {offer.amount}"
        if self.chain is None:
            return None
        try:
            with trio.move_on_after(_LOOK_AT_FUNDS):
                return await self.chain.lacks_funds(offer.owner, offer.job_id, offer.amount)
        except Unavailable:
            pass
        return None
