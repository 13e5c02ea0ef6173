"""Why a job is unclaimed: which providers could take it, what keeps each other one away, and what would change that.

What is told is what the chain and the quotes show anybody: of leases only that of the asked job. A provider that holds
it is about to claim it under its name; what else a provider holds stays untold, and so does how much room it says it
has, but for when there is none.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import anyio
import attrs

from common.api import why
from common.api.states import EndedBecause, JobState
from common.scalars import hex_of
from coordinatord.api.book import why_sql
from coordinatord.api.book.book_sql import JobRow
from coordinatord.api.book.polls import Custody, Funding
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.why_sql import MOST_PROVIDERS, OpenJob, ProviderFacts
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.replicas import IndexSource
from coordinatord.storage.database.snapshot_sql import Snapshot

WhyShape: TypeAlias = why.Why

_FRESH: Final = 1.0  # seconds in which an answer serves all who ask, as long as the index stands
_MOST_KEPT: Final = 4096
_AT_ONCE: Final = 1  # an answer about an open job costs PostgreSQL some twenty milliseconds
_MOST_WAITING: Final = 64
_MOST_WINDOWS: Final = 4  # that are told of as a help
_OWN_MATTER: Final = frozenset({"no_ask", "window", "price", "designated"})  # what another order would get round


@attrs.frozen(slots=True)
class ProviderStanding:
    """A provider's reasons, the first that matters most; none when it takes the job."""

    provider: ProviderFacts
    reasons: tuple[why.WhyReason, ...]

    @property
    def takes(self) -> bool:
        return not self.reasons

    @property
    def codes(self) -> frozenset[str]:
        return frozenset(reason.code for reason in self.reasons)


def reasons_of_job(job: OpenJob, funds: Funds) -> list[why.WhyReason]:
    """Reasons that keep everybody away from a job."""
    row, balance = job.job.row, funds.balances.get(job.job.row.owner)
    found = {
        "model_disabled": None if job.model_enabled else "the market takes no jobs of its model any more",
        "escrow_key_lost": "it is sealed to a key that the escrow has lost" if job.custody_lost else None,
        "authorization_used": (
            "the owner's authorisation of the payment is used up or cancelled" if row.job_id in funds.spent else None
        ),
        "unfunded": (
            f"it costs {job.job.amount}, and its owner's balance is {balance}"
            if balance is not None and balance < job.job.amount
            else None
        ),
        "held_back": (
            f"its payment could not be had a moment ago: it is offered again in {job.seconds_left} s"
            if job.leased_to == 0
            else None
        ),
    }
    return [why.WhyReason(code, said, why.OF_THE_JOB[code]) for code, said in found.items() if said is not None]


def standing_of(job: OpenJob, provider: ProviderFacts, shared: Sequence[why.WhyReason]) -> ProviderStanding:
    """Reasons that keep a provider from a job; `shared` are those that it has with all others."""
    own = [why.WhyReason(code, said, why.OF_A_PROVIDER[code]) for code, said in _reasons(job, provider)]
    return ProviderStanding(provider, (*shared, *own))


def _reasons(open_job: OpenJob, provider: ProviderFacts) -> Iterator[tuple[str, str]]:
    job = open_job.job.row
    holds = open_job.leased_to == provider.provider_id
    if not provider.listed:
        yield "not_listed", "the market's admin does not list it"
    if not provider.allowed:
        yield "model_not_allowed", "the market's admin does not let it run the model"
    if job.designated not in (0, provider.provider_id):
        yield "designated", f"the order is for provider {job.designated} alone"
    if not provider.wants:
        yield _unwanted(job, provider)
    if not provider.live:
        never = provider.seen is None
        yield "not_live", "it never polled for the model" if never else f"it polled {provider.seen} s ago"
    if holds:
        return
    if provider.active_jobs >= provider.capacity:
        yield "full", f"it holds {provider.active_jobs} claimed jobs, of {provider.capacity} that it may"
    elif provider.room <= 0:
        yield "no_free_slots", "it has no room for another job now"
    elif open_job.ahead + provider.ahead >= provider.room:
        yield "behind_others", f"{open_job.ahead + provider.ahead} older jobs come before it, more than it has room for"
    if open_job.leased_to:
        yield "leased", f"it is offered to provider {open_job.leased_to}, for {open_job.seconds_left} s more"


def _unwanted(job: JobRow, provider: ProviderFacts) -> tuple[str, str]:
    if not provider.asks:
        return "no_ask", "it asks for no orders of the model"
    for ask in provider.asks:
        if ask.sla == job.sla_secs:
            asked, paid = f"{ask.rate_in} in and {ask.rate_out} out", f"{job.rate_in} in and {job.rate_out} out"
            return "price", f"it asks {asked}; the order pays {paid}"
    windows = ", ".join(str(ask.sla) for ask in provider.asks)
    return "window", f"it asks for windows of {windows} seconds; the order's is {job.sla_secs}"


def ranked(standings: Sequence[ProviderStanding]) -> list[ProviderStanding]:
    """Those that could take the job first, then those that are there, then by how little keeps them away."""

    def place(one: ProviderStanding) -> tuple[bool, bool, bool, int, int]:
        provider = one.provider
        return not one.takes, not provider.live, not provider.listed, len(one.reasons), provider.provider_id

    return sorted(standings, key=place)


# Changes that would help: of the rates, the window, the provider that is named, the owner's balance.


_NO_TERMS: Final = {"unfunded", "held_back", "leased"}  # what keeps away whoever agrees to all that the order says


def helps(job: OpenJob, standings: Sequence[ProviderStanding], funds: Funds) -> Iterator[why.WhyHelp[str]]:
    row, balance = job.job.row, funds.balances.get(job.job.row.owner)
    if balance is not None and balance < job.job.amount:
        takers = sum(one.codes <= {"unfunded", "held_back"} for one in standings)
        yield why.WhyHelp("funds", {"balance": str(job.job.amount)}, str(takers))
    if any(one.codes <= _NO_TERMS for one in standings):
        return
    able = [one for one in standings if one.codes - _NO_TERMS <= _OWN_MATTER]
    meant = [one.provider for one in able if "designated" not in one.codes]
    yield from _better_rates(row, meant)
    yield from _other_windows(row, meant)
    others = [one.provider for one in able if one.codes & {"designated"} and _meets(row, one.provider, row.sla_secs)]
    if others:
        cheapest = min(others, key=lambda one: (_cost(row, one), one.active_jobs / one.capacity, one.provider_id))
        yield why.WhyHelp("designated", {"designated": str(cheapest.provider_id)}, "1")


def _better_rates(job: JobRow, providers: Sequence[ProviderFacts]) -> Iterator[why.WhyHelp[str]]:
    asked = {provider.provider_id: ask for provider in providers for ask in provider.asks if ask.sla == job.sla_secs}
    dearer = [ask for ask in asked.values() if ask.rate_in > int(job.rate_in) or ask.rate_out > int(job.rate_out)]
    if not dearer or len(dearer) < len(asked):
        return
    ask = min(dearer, key=lambda each: (each.rate_in * job.units_in + each.rate_out * job.units_out, each.rate_in))
    takers = sum(each.rate_in <= ask.rate_in and each.rate_out <= ask.rate_out for each in asked.values())
    yield why.WhyHelp("rates", {"rate_in": str(ask.rate_in), "rate_out": str(ask.rate_out)}, str(takers))


def _other_windows(job: JobRow, providers: Sequence[ProviderFacts]) -> Iterator[why.WhyHelp[str]]:
    windows = {ask.sla for provider in providers for ask in provider.asks} - {job.sla_secs}
    takers = {sla: sum(_meets(job, provider, sla) for provider in providers) for sla in sorted(windows)}
    for sla in [sla for sla, number in takers.items() if number][:_MOST_WINDOWS]:
        yield why.WhyHelp("window", {"sla_secs": str(sla)}, str(takers[sla]))


def _meets(job: JobRow, provider: ProviderFacts, sla: int) -> bool:
    return any(
        ask.sla == sla and ask.rate_in <= int(job.rate_in) and ask.rate_out <= int(job.rate_out)
        for ask in provider.asks
    )


def _cost(job: JobRow, provider: ProviderFacts) -> int:
    return min(
        ask.rate_in * job.units_in + ask.rate_out * job.units_out for ask in provider.asks if ask.sla == job.sla_secs
    )


# The verdict: one word and one sentence.

_ENDED: Final = {
    EndedBecause.SETTLE: ("settled", "its provider settled it: the result is there, and paid for"),
    EndedBecause.CANCEL: ("cancelled", "its owner cancelled it while it was open: nothing was collected"),
    EndedBecause.PROVIDER_FAIL: ("failed", "its provider failed it: the payment went back to its owner"),
    EndedBecause.RECLAIM: ("reclaimed", "its provider missed the window: the payment went back to its owner"),
    EndedBecause.EXPIRY: ("expired", "nobody claimed it until it expired: nothing was collected"),
}
_SHARED_WORDS: Final = {
    "not_listed": "is not listed",
    "model_not_allowed": "may not run the model",
    "no_ask": "asks for no orders of the model",
    "window": "asks for other windows",
    "price": "asks more than the order pays",
    "not_live": "does not poll",
    "full": "holds as many jobs as it may",
    "no_free_slots": "has no room now",
    "behind_others": "has older jobs to take first",
}


def verdict_on_open(
    job: OpenJob, shared: Sequence[why.WhyReason], standings: Sequence[ProviderStanding]
) -> tuple[str, str]:
    if shared:
        return shared[0].code, shared[0].said
    if job.leased_to:
        return "leased", f"provider {job.leased_to} is offered it, and has {job.seconds_left} s more to claim it"
    takers = [str(one.provider.provider_id) for one in standings if one.takes]
    if takers:
        word = "provider" if len(takers) == 1 else "providers"
        return "can_be_taken", f"{word} {', '.join(takers)} could take it, and may at any moment"
    named = job.job.row.designated
    concerned = [
        one
        for one in standings
        if one.provider.provider_id == named or (not named and one.provider.live and one.provider.listed)
    ]
    if named:
        if not concerned:
            return "kept_away", f"the order is for provider {named}, which is not registered"
        said = "; ".join(reason.said for reason in concerned[0].reasons)
        return concerned[0].reasons[0].code, f"the order is for provider {named} alone: {said}"
    if not concerned:
        return "nobody_live", "no listed provider polls for its model now"
    counted = Counter(one.reasons[0].code for one in concerned)
    told = "; ".join(f"{number} {_SHARED_WORDS[code]}" for code, number in counted.most_common())
    return (
        next(iter(counted)) if len(counted) == 1 else "kept_away",
        f"of {len(concerned)} providers that poll for its model: {told}",
    )


def verdict_on_moved(job: JobRow) -> tuple[str, str]:
    """The same of a job that is claimed or has ended."""
    if job.state == JobState.CLAIMED:
        ends = job.claimed_at + job.sla_secs
        return "claimed", f"provider {job.provider_id} claimed it, and has until {ends} to settle it"
    return _ENDED[EndedBecause(job.ended_because)]


@attrs.define(slots=True)
class WhyReads:
    """Answers to why a job is where it is, shared for a moment by all who ask.

    `custody` as for polls; `funding` is one of its own, so that nobody who asks can keep polls from the node."""

    reads: IndexReads
    index: IndexSource[Database]
    funding: Funding
    custody: Custody
    liveness_ms: int
    clock: Callable[[], float] = time.monotonic
    _kept: dict[bytes, tuple[float, Snapshot, WhyShape]] = attrs.field(factory=dict, init=False)
    _turns: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(_AT_ONCE), init=False)

    async def read(self, job_id: bytes) -> WhyShape | NoSuchObject:
        found = await self.reads.job.get(job_id)
        if found.value is None:
            return NoSuchObject("job")
        kept = self._kept.get(job_id)
        if kept is not None and kept[1] == found.snapshot and self.clock() - kept[0] < _FRESH:
            return kept[2]
        if found.value.state == JobState.OPEN:
            answer = await self._of_open(found.value, found.snapshot)
        else:
            answer = _moved(found.value, found.snapshot)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[job_id] = (self.clock(), found.snapshot, answer)
        return answer

    async def _of_open(self, row: JobRow, snapshot: Snapshot) -> WhyShape:
        async def facts(database: Database) -> tuple[Snapshot, tuple[OpenJob, list[ProviderFacts]] | None]:
            async with database.connection_for_lists() as connection:
                custody = await self.custody(connection)
                at, job = await why_sql.read_job(connection, row.job_id, custody)
                if job is None:
                    return at, None
                return at, (job, await why_sql.read_providers(connection, job, self.liveness_ms, custody))

        if self._turns.statistics().tasks_waiting >= _MOST_WAITING:
            raise Retryable("busy", "too many ask why jobs are unclaimed", retry_after=1)
        async with self._turns:
            _, read = await self.index.read(facts)
        if read is None:  # it moved a moment ago
            found = await self.reads.job.get(row.job_id)
            return _moved(found.value or row, found.snapshot)
        job, providers = read
        funds = await self.funding.of([job.job], job.snapshot)
        return explained(job, providers, funds)


def explained(job: OpenJob, providers: Sequence[ProviderFacts], funds: Funds) -> WhyShape:
    """The answer about an open job."""
    shared = reasons_of_job(job, funds)
    standings = ranked([standing_of(job, provider, shared) for provider in providers])
    verdict, said = verdict_on_open(job, shared, standings)
    row = job.job.row
    told = tuple(
        why.WhyProvider(str(one.provider.provider_id), one.takes, one.reasons) for one in standings[:MOST_PROVIDERS]
    )
    return why.Why(
        hex_of(row.job_id),
        row.state,
        verdict,
        said,
        told,
        tuple(helps(job, standings, funds)),
        str(job.snapshot.block_number),
    )


def _moved(row: JobRow, snapshot: Snapshot) -> WhyShape:
    if row.state == JobState.OPEN:  # a reorganisation, between two reads
        raise Retryable("not_ready", "the job is changing at this moment; ask again", retry_after=1)
    verdict, said = verdict_on_moved(row)
    return why.Why(hex_of(row.job_id), row.state, verdict, said, (), (), str(snapshot.block_number))
