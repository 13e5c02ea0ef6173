"""`svcd earnings`: settled, failed and abandoned jobs by day and model, and changes of the reputation.

Jobs are read from the coordinator's book. With `rpc_url`, amounts and reputation are read from the chain. The reasons
of failures are in the journal, which keeps three days. Jobs count on the UTC day of their claim.
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
from svcd.coordinator.client import Coordinator, read_deployment, transport_of
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, sessions_of, sign_in
from svcd.journal.book_row import Job
from svcd.journal.journal import JOURNAL_FILE
from svcd.operator.chain_history import ChainHistory, SettledAmounts, day_of

_DAY_S: Final = 86_400


@attrs.define(slots=True)
class ModelDay:
    """One day of one model. Amounts in base units of the payment token."""

    settled: int = 0
    earned: int = 0
    fees: int = 0  # the treasury's share of settled jobs, including the gas fee
    gas_fees: int = 0
    refunded: int = 0  # to clients: the unused part of settled jobs, and the whole amount of others
    failed: int = 0
    reclaimed: int = 0

    def add(self, other: "ModelDay") -> None:
        for field in attrs.fields(ModelDay):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@attrs.frozen(slots=True)
class Earnings:
    """Earnings by day and model.

    `reputation` has the change by day, or is None without a node. `reasons` covers failures of the last three days.
    """

    rows: Mapping[tuple[str, str], ModelDay]
    reputation: Mapping[str, int] | None
    reasons: Mapping[tuple[str, str], Counter[str]]
    book: AddressBook
    now: int  # reputation


async def read_earnings(config: DaemonConfig, days: int, clock: Clock | None = None) -> Earnings:
    """Read the earnings of the last `days` days, including today. Raise `Fatal` if the coordinator does not answer."""
    clock = clock or Clock()
    async with open_client(base_url=config.coordinator_url, timeout=30) as http:
        transport = transport_of(http, clock)
        try:
            book = config.addresses or await read_deployment(transport)
            signer = OpSigner(config.wallet, Domains.of(book))
            coordinator = Coordinator(transport, sessions_of(transport, signer))
            session = await sign_in(coordinator.sessions)
            if not isinstance(session, ProviderSession):
                raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {session.advice}")
            first = (int(clock.wall()) // _DAY_S - days + 1) * _DAY_S
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


def _rows(
    jobs: Iterable[Mapping[str, object]], names: Mapping[int, str], terms: quotes.FeeTerms, seen: ChainHistory | None
) -> dict[tuple[str, str], ModelDay]:
    rows: dict[tuple[str, str], ModelDay] = defaultdict(ModelDay)
    for entry in jobs:
        job = Job.read(entry)
        row = rows[day_of(job.claimed_at), names.get(job.model_id, f"model {job.model_id}")]
        quote = quotes.quote(job.rate_in, job.rate_out, job.units_in, job.units_out, terms)
        if job.state == JobState.SETTLED:
            made = seen.settlements.get(job.job_id) if seen is not None else None
            made = made or _settlement(job, read_uint(entry.get("completion_tok"), 32, "completion_tok"), quote, terms)
            row.add(ModelDay(1, made.cost, made.treasury, terms.gas_fee, made.refund))
        elif entry.get("ended_because") in (EndedBecause.PROVIDER_FAIL, EndedBecause.RECLAIM):
            failed = entry.get("ended_because") == EndedBecause.PROVIDER_FAIL
            row.add(ModelDay(refunded=quote.amount, failed=int(failed), reclaimed=int(not failed)))
    return dict(sorted(rows.items()))


def _settlement(job: Job, completion_tok: int, quote: quotes.Quote, terms: quotes.FeeTerms) -> SettledAmounts:
    """Compute the amounts by the current fee terms. Only the chain has the terms that an older job was charged."""
    cost = min(quote.cap, quotes.cap(job.rate_in, job.rate_out, job.units_in, min(completion_tok, job.units_out)))
    treasury = cost * terms.fee_bps // 10_000 + terms.gas_fee
    return SettledAmounts(cost, treasury, quote.amount - cost - treasury)


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
