from tests.soak.sampling import DEEPEST_REORG_BLOCKS, ChainHistory
from tests.support.invariants.market_log import MarketLog, Told


def log_of(*transactions: str, block: int = 1) -> MarketLog:
    return MarketLog([Told("JobPosted", {"jobId": b"\x01"}, block, 0, 1, each) for each in transactions], [], block, 1)


def test_history_counts_what_a_reorg_erased_once() -> None:
    history = ChainHistory()
    for log in (log_of("0xa", "0xb"), log_of("0xa"), log_of("0xa", "0xc")):
        history.add(log)
    assert history.counts == {"JobPosted": 3}


def test_history_forgets_events_that_no_reorg_reaches() -> None:
    history = ChainHistory()
    for block in range(1, 1_000):
        history.add(log_of(f"0x{block:x}", block=block))
    assert history.counts == {"JobPosted": 999}
    assert len(history._counted) == 2 * DEEPEST_REORG_BLOCKS
