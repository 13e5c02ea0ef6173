"""I13 by reads of the chain: every job ends by its own deadlines.

violations = liveness_violations(log, grace=120)
assert violations == []
"""

from tests.support.invariants.market_log import MarketLog

_ENDS = ("JobSettled", "JobFailed", "JobReclaimed", "JobCancelled")


def liveness_violations(log: MarketLog, *, grace: float) -> list[str]:
    """Return each violation as a sentence. `grace`: seconds of chain time that a reclaim may take after its job's
    window ends, including delays from injected faults. Pauses of the chain extend it.

    Read the log before a test moves the chain's clock forward to end windows.
    """
    windows = {event.values["jobId"]: event.values["slaSecs"] for event in log.named("JobPosted")}
    ended = {event.values["jobId"]: event.time for event in log.named(*_ENDS)}
    found = []
    for event in log.named("JobClaimed"):
        job = event.values["jobId"]
        if job not in windows:
            continue  # posted before the first event of the log
        claimed_at = event.values["claimedAt"]
        deadline = claimed_at + windows[job] + grace
        for before, after in log.pauses:
            if claimed_at <= before < deadline:
                deadline += after - before
        if (end := ended.get(job)) is None and log.time > deadline:
            found.append(f"I13: job {job.hex()} is still claimed {log.time - deadline + grace:.0f} s after its window")
        elif end is not None and end > deadline:
            found.append(f"I13: job {job.hex()} ended {end - deadline + grace:.0f} s after its window")
    return found
