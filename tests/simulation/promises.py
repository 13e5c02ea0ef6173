"""The promises of a provider, checked at every step of a simulated run and at its end. See `tests/README.md`."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import httpx

from common.bundle import read_bundle_output
from common.cid import cid_of
from common.envelope import ResultBody
from common.sealed_result import open_result
from common.tab.transcript import TabOrder, Transcript
from svcd.config import AheadTable
from svcd.journal.entries import LIVE_STATES
from tests.simulation.disk import Disk
from tests.simulation.market import SimulatedMarket
from tests.simulation.tabs import SimulatedOwner
from tests.support.fakes.market import BOOK, CLAIMED, OPEN, SETTLED

# Journal states that must be on disk before the coordinator gets the request that they record.
_BEFORE: Final = {
    "claim": ("claiming",),
    "release": ("claiming", "claimed"),
    "settle": ("sealed",),
    "fail": ("failing",),
}
# A claim sent before its post's block is resent while the job is worked on.
_WHILE_AHEAD: Final = ("claiming", "claimed", "sealed", "failing", "settled", "failed", "given_up")
# A claim that a reorg removed is sent again unless it returns. The result is stored by then.
_CLAIMED_AGAIN: Final = ("claiming", "sealed")
_GAVE_UP: Final = ("failed", "given_up")
_STAKE: Final = 3  # limit for each order in the simulation
AHEAD: Final = AheadTable(max_amount=8 * _STAKE, max_in_flight=2 * _STAKE, settled_jobs=1)


class JournalPromises:
    """Promises of one daemon and its journal in any market. `broken` holds each violation once."""

    def __init__(
        self, disk: Disk, named: Callable[[str], str], sealed_in: Callable[[Mapping[str, object]], bytes | None]
    ) -> None:
        self.disk, self.named, self.sealed_in = disk, named, sealed_in
        self.broken: list[str] = []
        self.runs: Counter[str] = Counter()
        self._handed_over: dict[str, tuple[str, int]] = {}  # CID and units of the first settle, by job
        self._claimed: set[str] = set()  # jobs with a sent claim
        self._records: dict[str, list[tuple[object, ...]]] = {}  # the owner's record when a claim was decided and sent
        self._kept: set[str] = set()  # jobs with their result on disk
        self._handed_in: set[str] = set()  # jobs with a claim accepted for relaying, worked on
        self._ahead: set[str] = set()  # jobs worked on before their block

    def breaks(self, what: str) -> None:
        if what not in self.broken:
            self.broken.append(what)

    # --- at every step ------------------------------------------------------------------------------------

    def arrives(self, name: str, request: httpx.Request) -> None:
        """Check a request before the market acts on it."""
        if name not in _BEFORE:
            return
        body = json.loads(request.content)
        job = str(body["job_id"])
        if name == "claim" and "prefer" in request.headers:
            self._handed_in.add(job)
        rows = self.disk.journal(
            "select state, completion_tok, result, result_cid from jobs where job_id = ?", bytes.fromhex(job[2:])
        )
        state = rows[0][0] if rows else None
        if state not in self._before(name, job):
            self.breaks(f"{name} of {self.named(job)} before the journal says so: it has {state}")
        if name == "settle":
            self._settles(job, body, rows[0] if rows else None)

    def _before(self, name: str, job: str) -> tuple[str, ...]:
        if name != "claim":
            return _BEFORE[name]
        if job in self._handed_in and job in self._claimed:
            return _WHILE_AHEAD
        is_anew = job in self._claimed
        self._claimed.add(job)
        self._records.setdefault(job, []).extend(self._record())
        return _CLAIMED_AGAIN if is_anew else _BEFORE[name]

    def _record(self) -> list[tuple[object, ...]]:
        return list(self.disk.journal("select settled, unpaid, settled_since from owners"))

    def _settles(self, job: str, body: dict[str, object], row: tuple[object, ...] | None) -> None:
        named = self.named(job)
        sealed = self.sealed_in(body)
        cid = str(body["result_cid"]) if sealed is None else str(cid_of(sealed))
        offered = cid, int(str(body["completion_tok"]))
        first = self._handed_over.setdefault(job, offered)
        if offered != first:
            self.breaks(f"{named} is settled with {offered[0]} for {offered[1]}, and before with {first[0]}")
        if row is None:
            return
        _, units, inline, _ = row
        kept = inline if isinstance(inline, bytes) else self.disk.result(bytes.fromhex(job[2:]))
        if units != offered[1] or not isinstance(kept, bytes) or str(cid_of(kept)) != cid:
            self.breaks(f"{named} is settled with a result that is not the journal's")

    def stepped(self) -> None:
        """Check after each step that the journal forgets nothing."""
        for job_id, state in self.disk.journal("select job_id, state from jobs where state in ('claiming', 'sealed')"):
            assert isinstance(job_id, bytes)
            job = "0x" + job_id.hex()
            if state == "sealed":
                self._kept.add(job)
            elif job not in self._records:
                self._records[job] = self._record()

    def runs_now(self, job_id: bytes, *, is_ahead: bool) -> None:
        """`is_ahead` means before the blocks of post and claim."""
        job = "0x" + job_id.hex()
        self.runs[job] += 1
        if is_ahead:
            self._ahead.add(job)
        if job in self._kept:
            self.breaks(f"{self.named(job)} is worked on again after its result was kept")

    # --- at the end ---------------------------------------------------------------------------------------

    def live(self) -> list[str]:
        """Return jobs without an end in the journal."""
        marks = ", ".join("?" * len(LIVE_STATES))
        rows = self.disk.journal(f"select job_id from jobs where state in ({marks})", *LIVE_STATES)  # noqa: S608 - constants
        return ["0x" + job_id.hex() for (job_id,) in rows if isinstance(job_id, bytes)]

    def entry(self, job: str) -> tuple[object, object]:
        """Return state and reason."""
        rows = self.disk.journal("select state, reason from jobs where job_id = ?", bytes.fromhex(job[2:]))
        return (rows[0][0], rows[0][1]) if rows else (None, None)

    def judge_ends(self, held: int, live: list[str]) -> None:
        """Check that no work remains, when faults are long over."""
        if held:
            self.breaks(f"{held} slots are held for nothing")
        for job in live:
            self.breaks(f"the journal has {self.named(job)} for live still")


class Promises(JournalPromises):
    """Promises of a daemon in the in-memory market."""

    def __init__(self, market: SimulatedMarket, disk: Disk) -> None:
        super().__init__(disk, market.named, market.sealed_in)
        self.market = market
        self.asked: dict[str, str] = {}  # text by job
        self.is_bid: dict[str, bool] = {}
        self.tabs: dict[str, SimulatedOwner] = {}
        self.items: dict[str, list[str]] = {}  # texts of bundles
        self._requests: dict[str, set[tuple[int, int]]] = {}  # requests of tabs that ran, with their life
        self._ran_in: dict[str, int] = {}  # jobs that ran ahead, with the life that ran them

    @property
    def ran_ahead(self) -> int:
        return len(self._ahead)

    # --- at every step ------------------------------------------------------------------------------------

    def runs_now(self, job_id: bytes, *, is_ahead: bool) -> None:
        super().runs_now(job_id, is_ahead=is_ahead)
        if is_ahead:
            self._runs_ahead("0x" + job_id.hex())

    def _runs_ahead(self, job: str) -> None:
        """Check the owner's record and the limit of jobs that run before their blocks."""
        life, named = self.market.life, self.named(job)
        self._ran_in[job] = life
        at_stake = self.market.undecided & set(self.live())  # jobs that fail for other reasons are lost in any case
        if len([one for one in at_stake if self._ran_in.get(one) == life]) > 2:
            self.breaks(f"{named} is run ahead beside two others")
        if self.is_bid[job]:
            self.breaks(f"{named} is an open bid, and run ahead")
        records = self._records.get(job, [])
        if not any(settled and (not unpaid or since) for settled, unpaid, since in records):
            self.breaks(f"{named} is run ahead for an owner with {records}")

    def request_runs(self, job_id: bytes, request_id: int) -> SimulatedOwner:
        """Check the start of a request of a tab, and return the owner."""
        job, life = "0x" + job_id.hex(), self.market.life
        owner, ran = self.tabs[job], self._requests.setdefault(job, set())
        named = f"{self.named(job)} request {request_id}"
        if (life, request_id) in ran or request_id in owner.answers:
            self.breaks(f"{named} is run twice")
        if request_id in owner.greedy:
            self.breaks(f"{named} is run beyond the allowance")
        ran.add((life, request_id))
        if job in self._kept:
            self.breaks(f"{named} is run after the transcript was kept")
        return owner

    # --- at the end ---------------------------------------------------------------------------------------

    def at_rest(self, held: int) -> bool:
        """Return whether every job has ended, also in the journal."""
        states = {row["state"] for row in self.market.jobs.values()}
        return not (held or self.market.undecided or states & {OPEN, CLAIMED} or self.live())

    def judge(self, held: int, lives: int, quiet_from: float) -> None:
        """Check all promises, when faults are long over."""
        self.judge_ends(held, self.live())
        for job, row in self.market.jobs.items():
            for found in self._of(job, row, lives, quiet_from):
                self.breaks(f"{self.named(job)} {found}")

        for job in self.market.refused_posts:
            if self.entry(job)[0] not in (None, "not_claimed", "given_up"):
                self.breaks(f"{self.named(job)} was refused, and the journal has {self.entry(job)}")
        self._judge_owners()

    def _judge_owners(self) -> None:
        """An owner's credit follows from the ends of its jobs."""
        ended = Counter(self.disk.journal("select state, reason = 'unpaid' from jobs"))
        settled = sum(n for (state, _), n in ended.items() if state == "settled")
        unpaid = sum(n for (state, reason), n in ended.items() if state == "given_up" and reason)
        told = self.disk.journal("select settled, unpaid from owners")
        if (told or [(0, 0)]) != [(settled, unpaid)]:
            self.breaks(f"the owner's record has {told}, and its jobs {settled} settled and {unpaid} unpaid")

    def _of(self, job: str, row: dict[str, object], lives: int, quiet_from: float) -> Iterator[str]:
        state, reason = self.entry(job)
        if row["state"] == CLAIMED:
            yield "is claimed still, and nobody works on it"
        if row["state"] == OPEN and state not in _GAVE_UP:
            yield f"is open still; the journal has {state} {reason}"
        if row["state"] == SETTLED and job in self.tabs:
            yield from self._of_tab(job, row, quiet_from)
        elif row["state"] == SETTLED and job in self.items:
            if self._items(job) != self.items[job]:
                yield "is settled with answers to something else"
        elif row["state"] == SETTLED and self._opened(job) != self.asked[job]:
            yield "is settled with an answer to something else"
        if row["state"] == SETTLED and state != "settled":
            yield f"is settled, and the journal has {state} {reason}"
        if row["state"] != SETTLED and state == "settled" and job not in self.market.reorganised:
            yield "is settled by the journal, and not on the chain"
        if float(str(row["expires_at"])) - 3600 > quiet_from and row["state"] != SETTLED:
            yield f"was ordered in quiet and is {row['state']}/{row['ended_because']}; the journal has {state} {reason}"
        unsettled = row["state"] != SETTLED and state != "settled"  # a reorg may have removed a settle
        if unsettled and job in self._kept and self._had_time(row, quiet_from):
            yield f"had its result and quiet time to settle in, and is {row['state']}/{row['ended_because']}"
        if self.runs[job] > lives + 1:
            yield f"ran {self.runs[job]} times in {lives} lives"

    def _of_tab(self, job: str, row: dict[str, object], quiet_from: float) -> Iterator[str]:
        """Compare the transcript with the settle, and with what the owner allowed and acknowledged."""
        owner, charged = self.tabs[job], int(str(row["completion_tok"]))
        transcript = Transcript.read(self._body(job).output)
        provider_id = self.market.provider_id
        order = TabOrder(owner.job_id, self.market.owner.address, provider_id, 100, 200, charged)
        fault = transcript.find_fault(order, owner.domains)
        if fault is not None:
            yield f"is settled with a transcript that does not match: {fault}"
        if transcript.acknowledged_units != charged:
            yield f"is settled for {charged}, and its owner acknowledged {transcript.acknowledged_units}"
        if charged > owner.most_allowed:
            yield f"is charged {charged} beyond the allowance of {owner.most_allowed}"
        ids = [exchange.id for exchange in transcript.exchanges]
        if len(set(ids)) != len(ids):
            yield f"is charged twice for a request of {ids}"
        in_quiet = float(str(row["expires_at"])) - 3600 > quiet_from
        if in_quiet and transcript.closing_reason != "tabs_full" and len(ids) + len(owner.failures) < owner.wanted:
            yield f"was opened in quiet, and has {ids} of {owner.wanted}; it closed by {transcript.closing_reason}"

    def _items(self, job: str) -> list[object]:
        """Return the texts of the answers of a bundle. An item that did not run counts as right."""
        results = zip(read_bundle_output(self._body(job).output), self.items[job], strict=True)
        return [result.output.get("input") if isinstance(result.output, dict) else text for result, text in results]

    def _had_time(self, row: dict[str, object], quiet_from: float) -> bool:
        return int(str(row["claimed_at"])) + int(str(row["sla_secs"])) > quiet_from + 120

    def _body(self, job: str) -> ResultBody:
        raw, sealed = bytes.fromhex(job[2:]), self.market.results[job]
        return ResultBody.parse(open_result(self.market.result_key, BOOK.chain_id, BOOK.job_registry, raw, sealed))

    def _opened(self, job: str) -> object:
        body = self._body(job)
        return body.output.get("input") if isinstance(body.output, dict) else None
