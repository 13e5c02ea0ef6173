"""A submitter in a market in memory."""

import pytest

from common.address_book import AddressBook, TokenDomain
from common.box import SecretKey
from common.domains import Domains
from common.quotes import FeeTerms
from common.secp256k1 import Wallet
from tests.support.fakes.submissions import Submitter

REGISTRY = b"\x11" * 20


@pytest.fixture
def submitter() -> Submitter:
    book = AddressBook(
        chain_id=31337,
        deploy_block=0,
        job_registry=REGISTRY,
        provider_registry=b"\x12" * 20,
        ask_registry=b"\x13" * 20,
        paytoken=b"\x14" * 20,
        payment_token_decimals=6,
        token_domain=TokenDomain("Token", "1"),
    )
    terms = FeeTerms(fee_bps=250, gas_fee=7)
    box_key = SecretKey(b"\x07" * 32).public
    return Submitter(Wallet(b"\x01" * 32), Domains.of(book), book.chain_id, REGISTRY, terms, box_key.raw)
