"""I2 of jobs, from the registry's own logs: each job has at most one Posted, one Claimed and one final event.

violations = await job_violations(rpc, address_book)
assert violations == []
"""

from collections import Counter
from collections.abc import Collection

from common.address_book import AddressBook
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.rpc.chain_data import ChainLog
from coordinatord.chain.rpc.client import Rpc


async def job_violations(
    rpc: Rpc, book: AddressBook, *, promised: Collection[bytes] = (), since_block: int | None = None
) -> list[str]:
    """Return each violation as a sentence. `promised`: ids of jobs whose submission was answered 201. Each must be
    posted (I1), since `since_block` if that is set."""
    counts: dict[str, Counter[bytes]] = {"posted": Counter(), "claimed": Counter(), "ended": Counter()}
    for event in await job_events(rpc, book, since_block):
        match event:
            case contract_events.JobPosted():
                counts["posted"][event.job_id] += 1
            case contract_events.JobClaimed():
                counts["claimed"][event.job_id] += 1
            case (
                contract_events.JobSettled()
                | contract_events.JobCancelled()
                | contract_events.JobFailed()
                | contract_events.JobReclaimed()
            ):
                counts["ended"][event.job_id] += 1
    found = [
        f"I2: job {job.hex()} was {what} {times} times"
        for what, jobs in counts.items()
        for job, times in jobs.items()
        if times > 1
    ]
    for what in ("claimed", "ended") if since_block is None else ():
        found += [f"I2: job {job.hex()} was {what} and never posted" for job in counts[what] - counts["posted"]]
    return found + [f"I1: job {job.hex()} was promised and not posted" for job in set(promised) - set(counts["posted"])]


async def job_events(rpc: Rpc, book: AddressBook, first: int | None = None) -> list[contract_events.Event]:
    """Return the job registry's events from block `first` (default: its deployment), in chain order."""
    decoder = LogDecoder(book)
    query = {
        "fromBlock": hex(book.deploy_block if first is None else first),
        "toBlock": "latest",
        "address": "0x" + book.job_registry.hex(),
    }
    logs = await rpc.call_as(list[ChainLog], "eth_getLogs", query)
    return [event for event in map(decoder.decode, logs) if event is not None]
