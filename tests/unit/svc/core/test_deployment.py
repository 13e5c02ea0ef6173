import attrs
import pytest

from common.address_book import AddressBook, TokenDomain
from common.refusal import Refused
from svc.core.deployment import Market
from svc.records import Contracts, Deployment, TokenName

ADDRESSES = [f"0x{n:02x}" + "ab" * 19 for n in (1, 2, 3, 4)]
SAID = Deployment(31337, Contracts(*ADDRESSES), 6, TokenName("Dev Dollar", "1"), 1, 1, 1, 250)
PINNED = AddressBook(31337, 77, *(bytes.fromhex(each[2:]) for each in ADDRESSES), 6, TokenDomain("Dev Dollar", "1"))


def test_deployment_that_is_pinned_is_taken_wherever_its_replay_begins() -> None:
    assert Market.of(SAID, PINNED) == Market.of(SAID)


@pytest.mark.parametrize(
    "pinned",
    [
        attrs.evolve(PINNED, chain_id=1),
        attrs.evolve(PINNED, job_registry=bytes(20)),
        attrs.evolve(PINNED, paytoken=bytes(20)),
        attrs.evolve(PINNED, token_domain=TokenDomain("Dev Dollar", "2")),
    ],
)
def test_any_other_deployment_is_refused(pinned: AddressBook) -> None:
    with pytest.raises(Refused):
        Market.of(SAID, pinned)
