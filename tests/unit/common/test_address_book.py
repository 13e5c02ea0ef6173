import json

import pytest
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.address_book import MAX_TOKEN_DECIMALS, AddressBook, TokenDomain
from common.refusal import Refused
from tests.vectors.vector_file import cases

VECTORS = cases("address_book.json")
REFUSED = [case for case in VECTORS if "refused" in case]
ACCEPTED = [case for case in VECTORS if "refused" not in case]

contracts = st.binary(min_size=20, max_size=20).filter(any)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
books = st.builds(
    AddressBook,
    chain_id=st.integers(1, 2**53 - 1),
    deploy_block=st.integers(0, 2**53 - 1),
    job_registry=contracts,
    provider_registry=contracts,
    ask_registry=contracts,
    paytoken=contracts,
    payment_token_decimals=st.integers(0, MAX_TOKEN_DECIMALS),
    token_domain=st.builds(TokenDomain, names, names),
)


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_an_address_book_is_read(case):
    book, given_book = AddressBook.parse(case["text"].encode()), json.loads(case["text"])
    assert book.chain_id == int(given_book["chainId"])
    assert book.deploy_block == int(given_book["deployBlock"])
    assert book.job_registry == raw(given_book["jobRegistry"])
    assert book.provider_registry == raw(given_book["providerRegistry"])
    assert book.ask_registry == raw(given_book["askRegistry"])
    assert book.paytoken == raw(given_book["paytoken"])
    assert book.payment_token_decimals == int(given_book["paymentTokenDecimals"])
    assert book.token_domain == TokenDomain(**given_book["tokenDomain"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_faulty_address_book_is_refused_by_the_key_at_fault(case):
    with pytest.raises(Refused) as refusal:
        AddressBook.parse(case["text"].encode())
    assert refusal.value.param == case["param"]
    if case["param"]:
        assert case["param"] in refusal.value.message


@given(books)
def test_a_book_survives_writing_and_reading(book):
    assert AddressBook.parse(json.dumps(book.as_json()).encode()) == book
