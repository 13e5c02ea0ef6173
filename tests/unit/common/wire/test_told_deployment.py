"""The deployment that GET /evm/chain reports, as svc and svcd read it."""

import attrs
import pytest

from common.address_book import TokenDomain
from common.api.chain import DeploymentFields, reported_book
from common.api.shapes import read_shape
from common.refusal import Refused
from tests.support.fakes.market import BOOK

TOLD: dict[str, object] = {
    "chain_id": BOOK.chain_id,
    "contracts": {
        name: "0x" + getattr(BOOK, name).hex()
        for name in ("job_registry", "provider_registry", "ask_registry", "paytoken")
    },
    "decimals": BOOK.payment_token_decimals,
    "token_domain": {"name": BOOK.token_domain.name, "version": BOOK.token_domain.version},
    "gas_price": "1",
    "head_block": "2",
    "block_time_ms": 1000,
    "fee_bps": 250,
    "a member of later": True,
}


def test_deployment_matches_the_address_book() -> None:
    told = reported_book(read_shape(DeploymentFields[int], TOLD))
    assert attrs.evolve(BOOK, deploy_block=77).differences(told) == []


@pytest.mark.parametrize(
    "changed",
    [{"chain_id": True}, {"contracts": {}}, {"token_domain": {"name": "n"}}, {"decimals": -1}, {"contracts": None}],
)
def test_anything_else_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(Refused):
        reported_book(read_shape(DeploymentFields[int], TOLD | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"chain_id": 1},
        {"job_registry": b"\x09" * 20},
        {"provider_registry": b"\x09" * 20},
        {"ask_registry": b"\x09" * 20},
        {"paytoken": b"\x09" * 20},
        {"payment_token_decimals": 18},
        {"token_domain": TokenDomain(BOOK.token_domain.name, "2")},
        {"token_domain": TokenDomain("Other Dollar", BOOK.token_domain.version)},
    ],
)
def test_any_other_fact_is_a_difference_that_shows_both(changed: dict[str, object]) -> None:
    (difference,) = BOOK.differences(attrs.evolve(BOOK, **changed))  # type: ignore[arg-type] # one field each
    assert "expected" in difference
    assert "reported" in difference
