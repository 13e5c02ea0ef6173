"""`svcd earnings`: what a provider settled, failed and left, by day and model, and what became of its reputation.

The jobs are the coordinator's book's; with `rpc_url` the amounts are the chain's own, and reputation is told. Why jobs
failed stands in the journal, which remembers three days. A day is a day of UTC, of the claim.
"""

import csv
import io
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import httpx
import trio

from common import abi, quotes
from common.address_book import AddressBook
from common.artifacts import Artifact, event_topic, load
from common.contract_events import call_data, event_values, returned_values
from common.daemon.process import Fatal
from common.domains import Domains
from common.inclusion.header import octets, octets_of, quantity, texts
from common.refusal import Refused
from common.scalars import hex_of, read_uint
from common.wire.states import EndedBecause, JobState
from svcd.chain import ChainReader
from svcd.configuration.config import DaemonConfig
from svcd.coordinator.client import Coordinator, read_deployment
from svcd.coordinator.requests import Requests
from svcd.coordinator.sessions import OpSigner, ProviderSession, ProviderSessions
from svcd.errors import Unavailable
from svcd.job.held import Job
from svcd.journal.journal import JOURNAL_FILE
from svcd.timings import Clock

_DAY: Final = 86_400
_WIDEST: Final = 5_000  # blocks of one query for logs; halved where a node refuses it
_REPUTATION_AT_FIRST: Final = 500


@attrs.define(slots=True)
class EarningsRow:
    """One day of one model. Amounts in base units of the payment token."""

    settled: int = 0
    earned: int = 0
    fees: int = 0  # what the treasury got of the settled ones, the gas fee among it
    gas_fees: int = 0
    refunded: int = 0  # to clients: what settled jobs did not use, and the whole of the others
    failed: int = 0
    reclaimed: int = 0

    def add(self, other: "EarningsRow") -> None:
        for field in attrs.fields(EarningsRow):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@attrs.frozen(slots=True)
class Earnings:
    """`reputation`: change by day; None where there is no node to ask. `reasons`: of the last three days' failures."""

    rows: Mapping[tuple[str, str], EarningsRow]
    reputation: Mapping[str, int] | None
    reasons: Mapping[tuple[str, str], Counter[str]]
    book: AddressBook
    now: int  # reputation


@attrs.frozen(slots=True)
class SettledJob:
    cost: int
    treasury: int
    refund: int


async def read_earnings(config: DaemonConfig, days: int, clock: Clock | None = None) -> Earnings:
    """Of the last so many days, today among them. Fatal where the coordinator does not answer."""
    clock = clock or Clock()
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        requests = Requests(http, config.coordinator_url, clock)
        try:
            book = config.addresses or await read_deployment(requests)
            signer = OpSigner(config.wallet, Domains.of(book))
            coordinator = Coordinator(requests, ProviderSessions(requests, signer, clock))
            session = await coordinator.sessions.current()
            if not isinstance(session, ProviderSession):
                raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {session.advice}")
            first = (int(clock.wall()) // _DAY - days + 1) * _DAY
            jobs = [row for row in await coordinator.ended_by(session.provider_id) if _claimed_at(row) >= first]
            terms = await coordinator.terms()
            names = {model_id: name for name, model_id in (await coordinator.models()).items()}
            provider = await coordinator.provider(session.provider_id)
            chain = _chain(config, http, book, session.provider_id)
            seen = await ChainHistory.of(chain, jobs, first) if chain is not None else None
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None
    reasons = await trio.to_thread.run_sync(_reasons, config, first)
    return Earnings(
        _rows(jobs, names, terms, seen), seen.reputation if seen else None, reasons, book, provider.reputation
    )


def _chain(config: DaemonConfig, http: httpx.AsyncClient, book: AddressBook, provider_id: int) -> ChainReader | None:
    return ChainReader(http, config.rpc_url, book, provider_id) if config.rpc_url is not None else None


def _claimed_at(row: Mapping[str, object]) -> int:
    return read_uint(row.get("claimed_at"), 64, "claimed_at")


def day_of(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).date().isoformat()


def _rows(
    jobs: Iterable[Mapping[str, object]], names: Mapping[int, str], terms: quotes.Terms, seen: "ChainHistory | None"
) -> dict[tuple[str, str], EarningsRow]:
    rows: dict[tuple[str, str], EarningsRow] = defaultdict(EarningsRow)
    for told in jobs:
        job = Job.read(told)
        row = rows[day_of(job.claimed_at), names.get(job.model_id, f"model {job.model_id}")]
        quote = quotes.quote(job.rate_in, job.rate_out, job.units_in, job.units_out, terms)
        if job.state == JobState.SETTLED:
            made = seen.settlements.get(job.job_id) if seen is not None else None
            made = made or _settlement(job, read_uint(told.get("completion_tok"), 32, "completion_tok"), quote, terms)
            row.add(EarningsRow(1, made.cost, made.treasury, terms.gas_fee, made.refund))
        elif told.get("ended_because") in (EndedBecause.PROVIDER_FAIL, EndedBecause.RECLAIM):
            failed = told.get("ended_because") == EndedBecause.PROVIDER_FAIL
            row.add(EarningsRow(refunded=quote.amount, failed=int(failed), reclaimed=int(not failed)))
    return dict(sorted(rows.items()))


def _settlement(job: Job, completion_tok: int, quote: quotes.Quote, terms: quotes.Terms) -> SettledJob:
    """By the terms of now, which a job of before may differ from: its own are told by the chain alone."""
    cost = min(quote.cap, quotes.cap(job.rate_in, job.rate_out, job.units_in, min(completion_tok, job.units_out)))
    treasury = cost * terms.fee_bps // 10_000 + terms.gas_fee
    return SettledJob(cost, treasury, quote.amount - cost - treasury)


# What the chain itself says, by its events.


@attrs.frozen(slots=True)
class ChainHistory:
    settlements: Mapping[bytes, SettledJob]  # by job
    reputation: Mapping[str, int]  # change by day

    @classmethod
    async def of(cls, chain: ChainReader, jobs: Sequence[Mapping[str, object]], since: int) -> "ChainHistory":
        """From the first of the jobs' posts on: nothing of theirs was before."""
        posts = [read_uint(row["posted_block"], 64, "posted_block") for row in jobs if row.get("posted_block")]
        if not posts:
            return cls({}, {})
        head = quantity({"head": await chain.ask("eth_blockNumber")}, "head")
        me = hex_of(chain.provider_id.to_bytes(32, "big"))
        blocks = {"first": min(posts), "last": head}
        registry = load("JobRegistry")
        settled = await _logs(
            chain, address=chain.book.job_registry, artifact=registry, event="JobSettled", topics=[None, me], **blocks
        )
        found = {
            values["jobId"]: SettledJob(values["cost"], values["treasuryShare"], values["refund"])
            for _, values in settled
        }
        providers, address = load("ProviderRegistry"), chain.book.provider_registry
        moved = await _logs(chain, address=address, artifact=providers, event="ReputationSet", topics=[me], **blocks)
        times = await _times(chain, {block for block, _ in moved})
        by_day: dict[str, int] = defaultdict(int)
        # Each event tells what it came to, and not from what.
        before = await _reputation_at(chain, min(posts) - 1)
        for block, values in moved:
            if times[block] >= since and before is not None:
                by_day[day_of(times[block])] += values["reputation"] - before
            before = values["reputation"]
        return cls(found, dict(by_day))


async def _logs(
    chain: ChainReader,
    *,
    address: bytes,
    artifact: Artifact,
    event: str,
    topics: Sequence[str | None],
    first: int,
    last: int,
) -> list[tuple[int, dict[str, Any]]]:
    """In order; by ranges that the node takes."""
    found: list[tuple[int, dict[str, Any]]] = []
    span, at = _WIDEST, first
    while at <= last:
        end = min(last, at + span - 1)
        wanted = {
            "address": hex_of(address),
            "topics": [hex_of(event_topic(artifact, event)), *topics],
            "fromBlock": hex(at),
            "toBlock": hex(end),
        }
        try:
            logs = await chain.ask("eth_getLogs", wanted)
        except Unavailable:
            if span == 1:
                raise
            span = max(1, span // 4)
            continue
        if not isinstance(logs, list):
            raise Refused("eth_getLogs must be answered with a list of logs")
        for log in logs:
            values = event_values(artifact, event, texts(log, "topics", 32), octets(log, "data"))
            found.append((quantity(log, "blockNumber"), values))
        at = end + 1
    return found


async def _reputation_at(chain: ChainReader, block: int) -> int | None:
    """None where the node has forgotten how it was."""
    asked = call_data(load("ProviderRegistry"), "provider", abi.uint(chain.provider_id))
    call = {"to": hex_of(chain.book.provider_registry), "data": hex_of(asked)}
    try:
        told = octets_of(await chain.ask("eth_call", call, hex(max(0, block))), "answer to eth_call")
        found = returned_values(load("ProviderRegistry"), "provider", told)
    except (Unavailable, Refused):
        return None
    return int(found["reputation"]) or _REPUTATION_AT_FIRST


async def _times(chain: ChainReader, blocks: Iterable[int]) -> dict[int, int]:
    times = {}
    for number in blocks:
        block = await chain.ask("eth_getBlockByNumber", hex(number), False)
        times[number] = quantity(block if isinstance(block, dict) else {}, "timestamp")
    return times


# The journal's reasons.


def _reasons(config: DaemonConfig, since: float) -> dict[tuple[str, str], Counter[str]]:
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    statement = "select model, reason, claim_sent from jobs where state in ('failed', 'given_up') and claim_sent >= ?"
    try:
        with closing(sqlite3.connect(f"file:{config.state_directory / JOURNAL_FILE}?mode=ro", uri=True)) as connection:
            for model, reason, claim_sent in connection.execute(statement, (since,)):
                found[day_of(claim_sent), model][reason or "unknown"] += 1
    except sqlite3.DatabaseError:  # none yet, or not to be read by this user: the book has the rest
        return {}
    return found


# As a table, and as CSV.

_COLUMNS: Final = ("day", "model", "settled", "earned", "fees", "gas_fees", "refunded", "failed", "reclaimed")


def as_csv(told: Earnings) -> str:
    """Amounts in base units. The change of a day's reputation stands in a row without a model."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, "reputation", "reasons"])
    for (day, model), row in told.rows.items():
        reasons = told.reasons.get((day, model), Counter())
        why = " ".join(f"{reason}={count}" for reason, count in sorted(reasons.items()))
        writer.writerow([day, model, *attrs.astuple(row), "", why])
    for day, change in sorted((told.reputation or {}).items()):
        writer.writerow([day, *[""] * (len(_COLUMNS) - 1), change, ""])
    return text.getvalue()


def as_table(told: Earnings) -> str:
    total = EarningsRow()
    lines: list[tuple[str, ...]] = [("day", "model", "settled", "earned", "fees", "refunded", "failed", "reclaimed")]
    for (day, model), row in [*told.rows.items(), (("", "in all"), total)]:
        if row is not total:
            total.add(row)
        money = [_money(told.book, each) for each in (row.earned, row.fees, row.refunded)]
        lines.append((day, model, str(row.settled), *money, str(row.failed), str(row.reclaimed)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [
        "  ".join(_aligned(cell, width, n) for n, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    ]
    gas = _money(told.book, total.gas_fees)
    text.append(f"amounts in {told.book.token_domain.name}; fees are the market's, of which {gas} for gas")
    for (day, model), reasons in sorted(told.reasons.items()):
        why = ", ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items()))
        text.append(f"{day} {model}: not settled for {why}")
    if told.reputation is None:
        text.append(f"reputation {told.now}; with rpc_url its changes are told by day, and amounts are the chain's own")
    else:
        changes = ", ".join(f"{day} {change:+d}" for day, change in sorted(told.reputation.items())) or "no change"
        text.append(f"reputation {told.now} ({changes})")
    return "\n".join(text)


def _money(book: AddressBook, amount: int) -> str:
    """In tokens, to the last unit."""
    whole, rest = divmod(amount, 10**book.payment_token_decimals)
    return f"{whole}.{rest:0{book.payment_token_decimals}d}".rstrip("0").rstrip(".")


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
