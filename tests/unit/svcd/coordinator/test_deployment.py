import attrs
import httpx
import pytest

from common.refusal import Refused
from svcd.coordinator.requests import CoordinatorReply, differences, read_deployment
from tests.fakes.market import BOOK, Market


def _served() -> dict[str, object]:
    answer = Market(lambda: 0.0)._chain(httpx.Request("GET", "http://coordinator/evm/chain"))
    served: dict[str, object] = answer.json()
    return served


def test_deployment_is_what_signatures_are_bound_to() -> None:
    assert read_deployment(CoordinatorReply(200, _served(), retryable=False)).book == BOOK


@pytest.mark.parametrize(
    "changed",
    [{"chain_id": True}, {"contracts": {}}, {"token_domain": {"name": "n"}}, {"decimals": -1}, {"contracts": None}],
)
def test_anything_else_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(Refused):
        read_deployment(CoordinatorReply(200, _served() | changed, retryable=False))


def test_every_difference_from_the_operators_book_is_named() -> None:
    assert differences(BOOK, BOOK) == []
    other = attrs.evolve(BOOK, chain_id=1, ask_registry=b"\x09" * 20)
    assert differences(BOOK, other) == [
        "chain 1 instead of 31337",
        f"ask_registry 0x{'09' * 20} instead of 0x{'03' * 20}",
    ]
