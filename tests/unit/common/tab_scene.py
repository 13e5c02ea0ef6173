"""Domains and signatures for the tests of tabs."""

from typing import Final

from eth_account.signers.local import LocalAccount

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains

DOMAINS: Final = Domains.of(
    AddressBook(
        chain_id=31337,
        deploy_block=0,
        job_registry=b"r" * 20,
        provider_registry=b"p" * 20,
        ask_registry=b"a" * 20,
        paytoken=b"t" * 20,
        payment_token_decimals=6,
        token_domain=TokenDomain("USD Coin", "2"),
    )
)


def sign(account: LocalAccount, digest: bytes) -> bytes:
    return bytes(account.unsafe_sign_hash(digest).signature)
