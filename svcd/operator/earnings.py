"""Data of `svcd earnings`: settled, failed and reclaimed jobs by day and model, and changes of the reputation.

Jobs come from the coordinator's job book. With `rpc_url`, amounts and reputation come from the chain. Reasons of
failures come from the journal, which has the jobs of the last three days. A job counts on the UTC day of its claim.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Final

import attrs
import httpx
import trio

from common import quotes
from common.address_book import AddressBook
from common.api.states import EndedBecause, JobState
from common.daemon.process import Fatal
from common.domains import Domains
from common.refusal import Refused
from common.scalars import read_uint
from svc.wire.connections import open_client
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import Coordinator, open_transport, read_deployment
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, provider_sessions, sign_in
from svcd.journal.book_row import Job
from svcd.journal.history import utc_day
from svcd.journal.journal import JOURNAL_FILE
from svcd.operator.chain_history import ChainHistory, SettledAmounts

_DAY_S: Final = 86_400


@attrs.define(slots=True)
class DailyModelEarnings:
    """Jobs and amounts of one model on one day. Amounts are in base units of the payment token."""

    settled: int = 0
    earned: int = 0
    fees: int = 0  # the treasury's share of settled jobs, including the gas fee
    gas_fees: int = 0
    refunded: int = 0  # to clients: the unused part of settled jobs, and the whole amount of other jobs
    failed: int = 0
    reclaimed: int = 0

    def add(self, other: "DailyModelEarnings") -> None:
        for field in attrs.fields(DailyModelEarnings):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@attrs.frozen(slots=True)
class Earnings:
    """Earnings by day and model.

    `reputation_changes` has the change by day, or is None without a node. `failure_reasons` counts failures by reason.
    """

    rows: Mapping[tuple[str, str], DailyModelEarnings]
    reputation_changes: Mapping[str, int] | None
    failure_reasons: Mapping[tuple[str, str], Counter[str]]
    address_book: AddressBook
    current_reputation: int


async def read_earnings(config: DaemonConfig, days: int, clock: Clock | None = None) -> Earnings:
    """Read the earnings of the last `days` days, including today. Raise `Fatal` if the coordinator does not answer."""
    clock = clock or Clock()
    async with open_client(base_url=config.coordinator_url, timeout=30) as http:
        transport = open_transport(http, clock)
        try:
            book = config.addresses or await read_deployment(transport)
            signer = OpSigner(config.wallet, Domains.of(book))
            coordinator = Coordinator(transport, provider_sessions(transport, signer))
            session = await sign_in(coordinator.sessions)
            if not isinstance(session, ProviderSession):
                raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {session.operator_message}")
            first = (int(clock.unix_time()) // _DAY_S - days + 1) * _DAY_S
            jobs = [
                row for row in await coordinator.read_ended_jobs(session.provider_id) if _read_claimed_at(row) >= first
            ]
            terms = await coordinator.read_fee_terms()
            model_names = {model_id: name for name, model_id in (await coordinator.read_model_ids()).items()}
            provider = await coordinator.read_provider(session.provider_id)
            chain = _build_chain_reader(config, http, book, session.provider_id)
            history = await ChainHistory.read(chain, jobs, first) if chain is not None else None
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None
    reasons = await trio.to_thread.run_sync(_count_failure_reasons, config, first)
    return Earnings(
        _build_rows(jobs, model_names, terms, history),
        history.reputation_changes if history else None,
        reasons,
        book,
        provider.reputation,
    )


def _build_chain_reader(
    config: DaemonConfig, http: httpx.AsyncClient, book: AddressBook, provider_id: int
) -> ChainReader | None:
    return ChainReader(http, config.rpc_url, book, provider_id) if config.rpc_url is not None else None


def _read_claimed_at(row: Mapping[str, object]) -> int:
    return read_uint(row.get("claimed_at"), 64, "claimed_at")


def _build_rows(
    jobs: Iterable[Mapping[str, object]],
    model_names: Mapping[int, str],
    terms: quotes.FeeTerms,
    history: ChainHistory | None,
) -> dict[tuple[str, str], DailyModelEarnings]:
    rows: dict[tuple[str, str], DailyModelEarnings] = defaultdict(DailyModelEarnings)
    for entry in jobs:
        job = Job.read(entry)
        row = rows[utc_day(job.claimed_at), model_names.get(job.model_id, f"model {job.model_id}")]
        quote = quotes.quote(job.rate_in, job.rate_out, job.units_in, job.units_out, terms)
        if job.state == JobState.SETTLED:
            amounts = history.settlements.get(job.job_id) if history is not None else None
            amounts = amounts or _compute_amounts(
                job, read_uint(entry.get("completion_tok"), 32, "completion_tok"), quote, terms
            )
            row.add(DailyModelEarnings(1, amounts.cost, amounts.treasury, terms.gas_fee, amounts.refund))
        elif entry.get("ended_because") in (EndedBecause.PROVIDER_FAIL, EndedBecause.RECLAIM):
            failed = entry.get("ended_because") == EndedBecause.PROVIDER_FAIL
            row.add(DailyModelEarnings(refunded=quote.amount, failed=int(failed), reclaimed=int(not failed)))
    return dict(sorted(rows.items()))


def _compute_amounts(job: Job, completion_tok: int, quote: quotes.Quote, terms: quotes.FeeTerms) -> SettledAmounts:
    """Compute the amounts from the current fees. Only the chain has the fees that an older job paid."""
    cost = min(quote.cap, quotes.cap(job.rate_in, job.rate_out, job.units_in, min(completion_tok, job.units_out)))
    treasury = cost * terms.fee_bps // 10_000 + terms.gas_fee
    return SettledAmounts(cost, treasury, quote.amount - cost - treasury)


def _count_failure_reasons(config: DaemonConfig, since: float) -> dict[tuple[str, str], Counter[str]]:
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    statement = "select model, reason, claim_sent from jobs where state in ('failed', 'given_up') and claim_sent >= ?"
    try:
        with closing(sqlite3.connect(f"file:{config.state_directory / JOURNAL_FILE}?mode=ro", uri=True)) as connection:
            for model, reason, claim_sent in connection.execute(statement, (since,)):
                found[utc_day(claim_sent), model][reason or "unknown"] += 1
    except sqlite3.DatabaseError:  # the journal is missing or unreadable; show the earnings without reasons
        return {}
    return found
