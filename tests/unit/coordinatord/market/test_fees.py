import httpx
import pytest
from web3 import Web3

from common.daemon.process import Fatal
from coordinatord.market.fees import GWEI, FeeOptions, Fees, current_fees
from tests.unit.coordinatord.market.nodes import error, node_that, result


def chain(base: int | None, tip: int | None) -> Web3:
    def answer(method: str, _: object) -> httpx.Response:
        if method == "eth_maxPriorityFeePerGas":
            return error(-32601, "method not found") if tip is None else result(hex(tip))
        return result({} if base is None else {"baseFeePerGas": hex(base)})

    return node_that(answer)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (FeeOptions(), Fees(base_fee=100, tip=7, max_fee=207)),
        (FeeOptions(tip=1), Fees(base_fee=100, tip=1, max_fee=201)),
        (FeeOptions(max_fee=150), Fees(base_fee=100, tip=7, max_fee=150)),
        (FeeOptions(max_fee=107), Fees(base_fee=100, tip=7, max_fee=107)),
    ],
)
def test_fee_offer_is_twice_the_base_fee_plus_tip(options: FeeOptions, expected: Fees) -> None:
    assert current_fees(chain(100, 7), options) == expected


def test_ceiling_below_the_chains_fee_is_refused() -> None:
    with pytest.raises(Fatal, match="raise --max-fee"):
        current_fees(chain(100, 7), FeeOptions(max_fee=106))


def test_node_that_proposes_no_tip_gets_one_gwei() -> None:
    assert current_fees(chain(100, None), FeeOptions()).tip == GWEI


def test_chain_without_base_fee_is_refused() -> None:
    with pytest.raises(Fatal, match="EIP-1559"):
        current_fees(chain(None, 1), FeeOptions())


def test_replacement_raises_both_fees_by_a_tenth_at_least() -> None:
    raised = Fees(base_fee=1, tip=1, max_fee=3).replacement_for(1000, 100)
    assert raised.max_fee >= 1100
    assert raised.tip >= 110
    assert Fees(base_fee=1, tip=5000, max_fee=9000).replacement_for(1000, 100) == Fees(
        base_fee=1, tip=5000, max_fee=9000
    )
