"""Buyer that signs for the market that a coordinator describes: orders, payments, cancels, sessions."""

import time
from typing import Any, Final

import attrs

from common.address_book import AddressBook, TokenDomain
from common.container import commitment_of, seal
from common.domains import Domains
from common.messages.jobs import Cancel, Order
from common.messages.payments import job_payment
from common.messages.sessions import SvcSession
from common.quotes import derive_job_id
from common.scalars import base64_of, hex_of, read_hex
from common.secp256k1 import Wallet
from tests.conformance.asking import Body


@attrs.define
class Buyer:
    """A wallet at a coordinator. Its signatures are valid unless a check spoils them."""

    wallet: Wallet
    chain: AddressBook
    domains: Domains = attrs.field(init=False)
    token: str = ""

    def __attrs_post_init__(self) -> None:
        self.domains = Domains.of(self.chain)

    @property
    def address(self) -> str:
        return hex_of(self.wallet.address)

    @property
    def session(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def session_body(self, nonce: str, **changed: object) -> Body:
        signature = self.wallet.sign(self.domains.session.digest(SvcSession(self.wallet.address, nonce)))
        return {"address": self.address, "nonce": nonce, "signature": hex_of(signature), **changed}

    def container(self, recipient: Any, plaintext: bytes) -> bytes:
        return seal(recipient, self.chain.chain_id, self.chain.job_registry, self.wallet.address, plaintext)

    def order(self, container: bytes, /, **changed: Any) -> Body:
        """Return a signed order. Changed terms are signed as changed, and other overrides apply after signing."""
        terms: Body = {
            "model_id": 1,
            "sla_secs": 3600,
            "rate_in": 100_000,
            "rate_out": 200_000,
            "units_in": 1000,
            "units_out": 1000,
            "designated": 0,
            "expires_at": int(time.time()) + 3600,
        }
        terms |= {name: changed.pop(name) for name in list(changed) if name in terms}
        c = commitment_of(container).c
        signature = self.wallet.sign(self.domains.jobs.digest(Order(c=c, **terms)))
        own = {"c": hex_of(c), "owner": self.address, "job_id": hex_of(derive_job_id(self.wallet.address, c))}
        sent = {name: str(value) for name, value in terms.items()}
        return {**sent, **own, "signature": hex_of(signature), **changed}

    def paid(self, order: Body, amount: int, container: bytes | None) -> Body:
        payment = job_payment(
            self.wallet.address,
            self.chain.job_registry,
            amount,
            int(order["expires_at"]),
            read_hex(order["job_id"], 32, "job_id"),
        )
        signature = hex_of(self.wallet.sign(self.domains.token.digest(payment)))
        sent = {} if container is None else {"container": base64_of(container)}
        return {**order, "amount": str(amount), "auth_sig": signature, **sent}

    def cancel(self, job: str, issued_at: int) -> Body:
        signed = self.domains.jobs.digest(Cancel(read_hex(job, 32, "job_id"), issued_at))
        return {"issued_at": issued_at, "signature": hex_of(self.wallet.sign(signed))}


def book_of(fields: Body) -> AddressBook:
    """Return the address book from `GET /evm/chain`. Raise Refused or KeyError if it is missing."""
    contracts = {name: read_hex(fields["contracts"][name], 20, name) for name in _CONTRACTS}
    named = TokenDomain(fields["token_domain"]["name"], fields["token_domain"]["version"])
    return AddressBook(int(fields["chain_id"]), 0, **contracts, payment_token_decimals=0, token_domain=named)


_CONTRACTS: Final = ("job_registry", "provider_registry", "ask_registry", "paytoken")
