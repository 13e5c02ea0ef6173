"""Conformance of a provider: a scripted market puts it into situations, and checks its reactions.

Jobs are posted in rounds. A round is over when each of its jobs has ended or timed out. Rows about signatures, times
and bodies are judged at the end, over all requests.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import attrs

from common.api.states import EndedBecause, JobState
from tests.conformance.provider_market import ProviderMarket
from tests.conformance.situations import EIGHT, ROUNDS, Situation, never_arose
from tests.conformance.verdicts import Report

_MAX_POLLS_PER_S: Final = 10.0
_TELLING: Final = 5.0  # seconds
_PROMISES: Final = (
    ("claims", "signed by the provider, issued_at within 600 s"),
    ("settles", "signed by the provider, issued_at within 600 s, one result, completion_tok within units_out"),
    ("fails", "signed by the provider, issued_at within 600 s"),
    ("releases", "signed by the provider, issued_at within 600 s, of a job that it has claimed"),
    ("results", "sealed to the envelope's result_key for this job, in canonical JSON, naming the job"),
    ("polls", "state=Open, model and free together, with a session"),
    ("asks", "signed by the provider, for its own id, signed_at later each time"),
    ("set_identity", "signed by the provider, issued_at later each time"),
    ("request_capacity", "signed by the provider, issued_at later each time"),
    ("uploads", "purpose=result first, then the file"),
)
_OPS: Final = {"claims": "claim", "settles": "settle", "fails": "fail", "releases": "release", "polls": "poll",
               "results": "settle that opens", "uploads": "upload"}  # fmt: skip


@attrs.define
class ProviderTrial:
    """`arrival`: seconds for the first poll; `patience`: for each round of jobs; `looked_on`: after a round's
    last end, for what must not happen."""

    market: ProviderMarket
    report: Report
    patience: float = 60.0
    arrival: float = 60.0
    looked_on: float = 4.0
    rounds: Sequence[Sequence[Situation]] = ROUNDS

    async def run(self) -> Report:
        if not await self._until(
            lambda: self.market.operator is not None and bool(self.market.heard_of(None, "poll")), self.arrival
        ):
            came = "a session and no poll" if self.market.operator else "no session"
            self.report.judge("provider", "sign-in and first poll", f"both within {self.arrival:g} s", came, EIGHT)
            return self.report
        self.report.judge("provider", "sign-in and first poll", "both", None, EIGHT)
        if not await self._until(lambda: self.market.box_key is not None):
            why = "it published no box key, and none was told with --box-key"
            self.report.leave("provider", "jobs", why, EIGHT)
        else:
            await self._until(lambda: bool(self.market.asks), 10.0)
            for situations in self.rounds:
                await self._round(situations)
        self._promises()
        return self.report

    async def _round(self, situations: Sequence[Situation]) -> None:
        box = self.market.box_key
        if box is None:
            raise AssertionError("rounds begin once there is a key to seal to")
        jobs = [(situation, situation.prepare(self.market, box)) for situation in situations]
        scripted = {key: len(queue) for key, queue in self.market.scripts.items()}
        ending = [job for situation, job in jobs if situation.expected.ends != "left"]
        ended = {int(JobState.SETTLED), int(JobState.CANCELLED)}
        await self._until(
            lambda: (
                all(self.market.jobs[job]["state"] in ended for job in ending)
                and all(self.market.was_shown(job) for _, job in jobs)
            )
        )
        await anyio.sleep(self.looked_on)
        for situation, job in jobs:
            wrong = situation.expected.wrong(situation, self.market, job)
            untried = never_arose(self.market, job, scripted)
            if untried is not None and (wrong is None or not self.market.offered[job]):
                self.report.leave("situations", situation.tried, untried, situation.page)
            else:
                self.report.judge("situations", situation.tried, situation.said, wrong, situation.page)
            if self.market.jobs[job]["state"] == JobState.OPEN:
                self.market.end(job, EndedBecause.EXPIRY)

    def _promises(self) -> None:
        market = self.market
        for promise, expected in _PROMISES:
            op = _OPS.get(promise, promise)
            faults = market.faults.get(promise, [])
            kept = {"uploads": market.uploads, "results": market.results}
            if not faults and not kept.get(promise, any(each.name == op for each in market.heard)):
                self.report.leave("promises", promise, f"no {op} was sent", EIGHT)
            else:
                self.report.judge("promises", promise, expected, _first(faults), EIGHT)
        for promise, expected in (
            ("sign-in", "SvcSession by the address, role provider"),
            ("bodies", "strict JSON, members as the pages have them"),
        ):
            self.report.judge("promises", promise, expected, _first(market.faults.get(promise, [])), EIGHT)
        polls = [each.at for each in market.heard if each.name == "poll"]
        seconds = polls[-1] - polls[0]
        if seconds < _TELLING:
            self.report.leave("promises", "pace of the polls", f"{seconds:.1f} s of polls tell of no pace", EIGHT)
            return
        pace = (len(polls) - 1) / seconds
        wrong = None if pace <= _MAX_POLLS_PER_S else f"{pace:.0f} a second"
        self.report.judge("promises", "pace of the polls", "every second or a few", wrong, EIGHT)

    async def _until(self, holds: Callable[[], bool], patience: float | None = None) -> bool:
        until = time.monotonic() + (self.patience if patience is None else patience)
        while not holds():
            if time.monotonic() >= until:
                return False
            await anyio.sleep(0.05)
        return True


def _first(faults: Sequence[str]) -> str | None:
    return None if not faults else faults[0] if len(faults) == 1 else f"{faults[0]} (and {len(faults) - 1} more)"
