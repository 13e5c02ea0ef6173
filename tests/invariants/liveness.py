"""I13 by reads of the chain: every job ends by its own deadlines.

violations = liveness_violations(log, grace=120)
assert violations == []
"""

from tests.invariants.market_log import MarketLog

_ENDS = ("JobSettled", "JobFailed", "JobReclaimed", "JobCancelled")


def liveness_violations(log: MarketLog, *, grace: float) -> list[str]:
    """What is broken, in words; empty when all holds. `grace`: seconds of the chain's clock that a reclaim may take
    after the end of its job's window, with all that went wrong meanwhile.

    To be read before anybody moves the chain's clock ahead to have windows end.
    """
    windows = {event.values["jobId"]: event.values["slaSecs"] for event in log.named("JobPosted")}
    ended = {event.values["jobId"]: event.time for event in log.named(*_ENDS)}
    found = []
    for event in log.named("JobClaimed"):
        job = event.values["jobId"]
        deadline = event.values["claimedAt"] + windows[job] + grace
        if (end := ended.get(job)) is None and log.time > deadline:
            found.append(f"I13: job {job.hex()} is still claimed {log.time - deadline + grace:.0f} s after its window")
        elif end is not None and end > deadline:
            found.append(f"I13: job {job.hex()} ended {end - deadline + grace:.0f} s after its window")
    return found
