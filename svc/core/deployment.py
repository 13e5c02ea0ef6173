"""One deployment of the market, as a client knows it: where it signs and what it seals for."""

from typing import Self

import attrs

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.receipt import ReceiptMarket
from common.refusal import Refused
from common.scalars import read_hex
from svc.records import Deployment


@attrs.frozen(slots=True)
class Market:
    """`decimals` of the payment token are for showing amounts; all amounts here are in base units."""

    chain_id: int
    job_registry: bytes
    decimals: int
    domains: Domains = attrs.field(repr=False)

    @property
    def for_receipts(self) -> ReceiptMarket:
        token = self.domains.token.domain
        if token.verifying_contract is None:
            raise AssertionError("a token's domain has its contract")
        return ReceiptMarket(self.chain_id, self.job_registry, token.verifying_contract, token.name, token.version)

    @classmethod
    def of(cls, answer: Deployment, pinned: AddressBook | None = None) -> Self:
        """Raises Refused when the coordinator's deployment is not the one that was pinned.

        Unpinned, the coordinator says which contracts are signed for: then trusting it is trusting it with payments
        up to their amounts.
        """
        said = AddressBook(
            chain_id=answer.chain_id,
            deploy_block=0,
            job_registry=read_hex(answer.contracts.job_registry, 20, "contracts.job_registry"),
            provider_registry=read_hex(answer.contracts.provider_registry, 20, "contracts.provider_registry"),
            ask_registry=read_hex(answer.contracts.ask_registry, 20, "contracts.ask_registry"),
            paytoken=read_hex(answer.contracts.paytoken, 20, "contracts.paytoken"),
            payment_token_decimals=answer.decimals,
            token_domain=TokenDomain(answer.token_domain.name, answer.token_domain.version),
        )
        if pinned is not None and attrs.evolve(pinned, deploy_block=0) != said:
            raise Refused("the coordinator's deployment is not the pinned one", "contracts")
        return cls(said.chain_id, said.job_registry, answer.decimals, Domains.of(said))
