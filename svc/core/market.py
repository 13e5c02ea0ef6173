"""Verified deployment of a market. A client signs and seals orders only for such a deployment."""

from typing import Self

import attrs

from common.address_book import AddressBook
from common.domains import Domains
from common.receipt import ReceiptMarket


@attrs.frozen(slots=True)
class VerifiedMarket:
    """Verified deployment. Amounts are in base units of the payment token; `decimals` is only for display."""

    chain_id: int
    job_registry: bytes
    decimals: int
    domains: Domains = attrs.field(repr=False)

    @property
    def receipt_market(self) -> ReceiptMarket:
        token = self.domains.token.domain
        if token.verifying_contract is None:
            raise AssertionError("the token's signing domain has no contract")
        return ReceiptMarket(self.chain_id, self.job_registry, token.verifying_contract, token.name, token.version)

    @classmethod
    def of(cls, book: AddressBook) -> Self:
        return cls(book.chain_id, book.job_registry, book.payment_token_decimals, Domains.of(book))
