from coordinatord.chain.relayer.coalesce import PlannedTx, Rank, split_affordable
from coordinatord.chain.relayer.settings import RelayerSettings

RESERVES = {Rank.EXIT: 0, Rank.CANCEL: 100, Rank.OTHER: 300}


def plan(rank: Rank, gas: int) -> PlannedTx:
    return PlannedTx(b"", b"", gas, rank, ())


def test_floors_are_gas_amounts_at_the_offered_price() -> None:
    settings = RelayerSettings(queue_timeout_ms=1, block_time_ms=1, cancel_reserve_gas=10, reserve_gas=30)
    assert settings.reserves(12) == {Rank.EXIT: 0, Rank.CANCEL: 120, Rank.OTHER: 360}


def test_round_leaves_funds_for_more_urgent_ops() -> None:
    plans = [plan(Rank.OTHER, 60), plan(Rank.OTHER, 60), plan(Rank.CANCEL, 150), plan(Rank.EXIT, 150)]
    paid, unpaid = split_affordable(plans, 400, 1, RESERVES)
    assert [(p.rank, p.gas_limit) for p in paid] == [(Rank.OTHER, 60), (Rank.CANCEL, 150), (Rank.EXIT, 150)]
    assert [(p.rank, p.gas_limit) for p in unpaid] == [(Rank.OTHER, 60)]
