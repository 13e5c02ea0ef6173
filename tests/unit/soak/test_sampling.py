from tests.invariants.market_log import MarketLog, Told
from tests.soak.sampling import ChainHistory


def log_of(*transactions: str) -> MarketLog:
    return MarketLog([Told("JobPosted", {"jobId": b"\x01"}, 1, 0, 1, each) for each in transactions], [], 1, 1)


def test_history_keeps_what_a_reorg_erased_and_counts_it_once() -> None:
    history = ChainHistory()
    for log in (log_of("0xa", "0xb"), log_of("0xa"), log_of("0xa", "0xc")):
        history.add(log)
    assert history.counts() == {"JobPosted": 3}
