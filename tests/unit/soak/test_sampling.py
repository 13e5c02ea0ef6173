from tests.soak.sampling import ChainHistory
from tests.support.invariants.market_log import MarketLog, Told


def log_of(*transactions: str, block: int = 1) -> MarketLog:
    return MarketLog([Told("JobPosted", {"jobId": b"\x01"}, block, 0, 1, each) for each in transactions], [], block, 1)


def test_history_counts_what_a_reorg_erased_once() -> None:
    history = ChainHistory()
    for log in (log_of("0xa", "0xb"), log_of("0xa"), log_of("0xa", "0xc")):
        history.add(log)
    assert history.counts == {"JobPosted": 3}
