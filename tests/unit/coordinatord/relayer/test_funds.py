from coordinatord.chain.relayer.coalesce import Planned, Rank
from coordinatord.chain.relayer.fees import FeeMarket
from coordinatord.chain.relayer.reserves import Reserves, affordable

RESERVES = Reserves(cancel=100, other=300)


def plan(rank: Rank, gas: int) -> Planned:
    return Planned(b"", b"", gas, 0, rank, ())


def test_floors_are_gas_amounts_at_the_offered_price() -> None:
    assert Reserves.of(10, 30, FeeMarket(base_fee=5, tip=2)) == Reserves(120, 360)


def test_low_funds_relay_only_exits_and_cancels() -> None:
    allowed = [[rank for rank in Rank if RESERVES.allows(rank, funds)] for funds in (300, 299, 100, 99, 0, -1)]
    exits, cancels, every = [Rank.EXIT], [Rank.EXIT, Rank.CANCEL], [Rank.EXIT, Rank.CANCEL, Rank.OTHER]
    assert allowed == [every, cancels, cancels, exits, exits, exits]


def test_round_leaves_funds_for_more_urgent_ops() -> None:
    plans = [plan(Rank.OTHER, 60), plan(Rank.OTHER, 60), plan(Rank.CANCEL, 150), plan(Rank.EXIT, 150)]
    paid, unpaid = affordable(plans, 400, 1, RESERVES)
    assert [(p.rank, p.gas) for p in paid] == [(Rank.OTHER, 60), (Rank.CANCEL, 150), (Rank.EXIT, 150)]
    assert [(p.rank, p.gas) for p in unpaid] == [(Rank.OTHER, 60)]
