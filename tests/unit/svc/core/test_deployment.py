from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from svc.core.market import VerifiedMarket

BOOK = AddressBook(31337, 77, *(bytes([n]) * 20 for n in (1, 2, 3, 4)), 6, TokenDomain("Dev Dollar", "1"))


def test_market_of_a_book_signs_in_the_domains_of_its_contracts() -> None:
    market = VerifiedMarket.of(BOOK)
    assert (market.chain_id, market.job_registry, market.decimals) == (31337, b"\x01" * 20, 6)
    assert market.domains == Domains.of(BOOK)
