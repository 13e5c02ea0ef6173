"""The tests' market with planned faults: late, lost or wrong responses, an index that lags or stops, and reorgs. All
its responses are ones that a real market could give."""

import base64
import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import httpx
import trio

from tests.simulation.plan import WEATHER, Fault, Plan
from tests.simulation.trace import Trace
from tests.support.fakes.market import CLAIMED, OPEN, SETTLED, START, Market, request_name
from tests.support.fakes.market_answers import Body, answer, error, mined
from tests.support.fakes.streamed import StreamedTransport

OPS: Final = ("claim", "settle", "fail")
_RECLAIM_AFTER_S: Final = 60  # after the window
_LATENCY: Final = 0.2
_LONGEST_LAG: Final = 2.5
_RECEIPT_TIMEOUT_S: Final = 60.0  # of a coordinator
_MAX_HANG_S: Final = 95.0  # below the clients' timeout of a hundred


class SimulatedMarket(Market):
    """`moment` is called between any two steps of a request, and `arrives` with each request that reaches the
    coordinator."""

    def __init__(
        self, plan: Plan, trace: Trace, *, moment: Callable[[str], None], arrives: Callable[[str, httpx.Request], None]
    ) -> None:
        super().__init__(lambda: START + trio.current_time())
        self.capacity, self.windows = 8, [120, 600]
        self.chance = chance = random.Random(f"market {plan.seed}")
        self.trace, self.moment, self.arrives = trace, moment, arrives
        faults = plan.faults
        self.noisy = plan.noisy
        self.life = 0  # number of the current daemon; requests of earlier ones are dropped
        self.world: trio.Nursery | None = None
        self.numbers: dict[str, int] = {}  # of the jobs, in order of their posts
        self.reorganised: set[str] = set()
        self.disk_is_full = False
        self.faults_met = 0
        self._away = False
        self._waiting = {place: deque(f for f in faults if f.place == place) for place in {f.place for f in faults}}
        self._weather = [fault for fault in faults if fault.place in (*WEATHER, "sessions")]
        self._noted: dict[str, Body] = {}
        self._past: deque[tuple[float, str, Body]] = deque()
        self.refused_posts: set[str] = set()
        self._decided: dict[str, trio.Event] = {}  # by job: the end of its post, and of the claim behind it
        self._taken: set[str] = set()  # jobs whose claim came before the post
        self._index: dict[str, Body] = {}
        self._stands_still = 0
        self._lag = chance.uniform(0, _LONGEST_LAG)

    def named(self, job: str) -> str:
        return f"job {self.numbers.setdefault(job, len(self.numbers))}"

    # --- requests on their way ----------------------------------------------------------------------------

    @property
    def transport(self) -> StreamedTransport:
        return StreamedTransport(partial(self._carried, self.life))

    async def _carried(self, life: int, request: httpx.Request) -> httpx.Response:
        await request.aread()
        name = request_name(request)
        self.moment(f"{name} sets out")
        self._heard(life)
        await trio.sleep(self.chance.uniform(0, _LATENCY))
        if self._away and request.url.host != "gateway":
            raise httpx.ConnectError("the coordinator is away")
        self.arrives(name, request)
        response = await self._answered(name, request)
        self.moment(f"the answer to {name} sets out")
        self._heard(life)
        await trio.sleep(self.chance.uniform(0, _LATENCY))
        return response

    def sealed_in(self, settle: Mapping[str, object]) -> bytes | None:
        """Return the sealed result of a settle, or None if its upload has expired."""
        if "result_cid" in settle:
            return self.content.get(str(settle["result_cid"]))
        return base64.b64decode(str(settle["result"]), validate=True)

    def _heard(self, life: int) -> None:
        if life != self.life:
            raise httpx.ConnectError("this daemon is no more")

    async def _answered(self, name: str, request: httpx.Request) -> httpx.Response:
        fault = self.due(name)
        if fault is None:
            return await self._done(name, request)
        self.trace.add(f"{name} meets {fault.kind}")
        match fault.kind:
            case "unreached":
                raise httpx.ConnectError(fault.kind)
            case "lost":
                await self._done(name, request)
                raise httpx.ReadError(fault.kind)
            case "hang":
                await trio.sleep(min(_MAX_HANG_S, 2 * fault.seconds))
                raise httpx.ReadTimeout(fault.kind)
            case "hang_after":
                await self._done(name, request)
                await trio.sleep(min(_MAX_HANG_S, 2 * fault.seconds))
                raise httpx.ReadTimeout(fault.kind)
            case "late":
                await trio.sleep(fault.seconds)
                return await self._done(name, request)
            case "later":
                assert self.world is not None
                self.world.start_soon(self._mined_later, fault.seconds, name, request)
                return _pending()
            case "lapsed":
                response = await self._done(name, request)
                if response.status_code == 200:
                    self.content.pop(response.json()["svc"]["cid"], None)
                return response
            case "garbled":
                response = await self._done(name, request)
                return httpx.Response(response.status_code, content=response.content[:-9] + b"something")
            case kind:
                return _instead(kind)

    def due(self, place: str) -> Fault | None:
        """Return and consume the fault that is due at this place, if any."""
        waiting = self._waiting.get(place)
        if not waiting or not waiting[0].at <= trio.current_time() < self.noisy:
            return None
        self.faults_met += 1
        return waiting.popleft()

    async def _mined_later(self, seconds: float, name: str, request: httpx.Request) -> None:
        await trio.sleep(seconds)
        await self._done(name, request)

    async def _done(self, name: str, request: httpx.Request) -> httpx.Response:
        waits = await self._behind(name, request) if name in OPS else None
        if waits is not None:
            return waits
        if name in ("poll", "claimed", "ended", "job", "jobs"):
            self._catch_up()
            chain, self.jobs = self.jobs, self._index
            try:
                response = self._perform(name, request)
            finally:
                self.jobs = chain
        else:
            response = self._perform(name, request)
        said = hashlib.sha256(request.url.raw_path + request.content + response.content).hexdigest()[:12]
        self.trace.add(f"{name} {response.status_code} {said}")
        self.note()
        return response

    # --- before the block of a post -----------------------------------------------------------------------

    async def offer_until(self, job: str, seconds: float, *, refused: bool) -> None:
        """Offer a job as pending for some seconds, until the block of its post. The chain may refuse the post."""
        self.offer(job)
        decided = self._decided[job] = trio.Event()
        await trio.sleep(seconds)
        self.pending.pop(job, None)
        row = self.posting.pop(job)
        if refused:
            self.refused_posts.add(job)
        else:
            self.jobs[job] = row
            if job in self._taken:  # in the same block
                self.claim(job)
        self.trace.add(f"the post of {self.named(job)} is {'refused' if refused else 'in a block'}")
        self.note()
        decided.set()

    async def _behind(self, name: str, request: httpx.Request) -> httpx.Response | None:
        """Return the response to an op on a job that is not on the chain yet. Return None if it is there, or never will
        be. A claim is then under way, and later ops wait for it."""
        job = str(json.loads(request.content)["job_id"])
        decided = self._decided.get(job)
        if decided is None:
            return None
        early = not decided.is_set()
        if early and name == "claim":
            self._taken.add(job)
            if "prefer" in request.headers:
                return self._stored(job)
        with trio.move_on_after(_RECEIPT_TIMEOUT_S):
            await decided.wait()
        if not decided.is_set():
            return _pending()
        if name == "claim" and job in self._taken and job in self.jobs:
            return mined()  # also for repeated requests
        return None

    def _stored(self, job: str) -> httpx.Response:
        steps = [{"op": "post", "rests_on": "broadcast"}, {"op": "claim", "rests_on": "stored"}]
        told = {"job_id": job, "status": "in_progress", "provisional": True, "steps": steps, "block": "1"}
        return answer(202, told)

    @property
    def undecided(self) -> frozenset[str]:
        """Return jobs that are not on the chain yet."""
        return frozenset(self.posting)

    # --- the chain, and the index that follows it ---------------------------------------------------------

    def note(self) -> None:
        """Index a change a little later."""
        for job, row in self.jobs.items():
            if self._noted.get(job) != row:
                self._noted[job] = dict(row)
                self._past.append((trio.current_time(), job, dict(row)))
                self.trace.add(f"{self.named(job)} is {row['state']}/{row['ended_because']}")

    def _catch_up(self) -> None:
        while not self._stands_still and self._past and self._past[0][0] <= trio.current_time() - self._lag:
            _, job, row = self._past.popleft()
            self._index[job] = row

    async def reclaim(self) -> None:
        while True:
            await trio.sleep(5)
            for job, row in self.jobs.items():
                if row["state"] == CLAIMED:
                    if self.now() > int(row["claimed_at"]) + int(row["sla_secs"]) + _RECLAIM_AFTER_S:
                        self.end(job, 4)
                elif row["state"] == OPEN and self.now() > int(row["expires_at"]):
                    self.end(job, 5)
            self.note()

    # --- temporary faults -----------------------------------------------------------------------------------

    async def weather(self) -> None:
        for fault in self._weather:
            await trio.sleep(max(0.0, fault.at - trio.current_time()))
            self.trace.add(f"{fault.place} for {fault.seconds} s")
            self.faults_met += 1
            assert self.world is not None
            self.world.start_soon(self._passes, fault)

    async def _passes(self, fault: Fault) -> None:
        match fault.place:
            case "sessions":
                self.sessions.clear()
            case "index":
                self._catch_up()
                self._stands_still += 1
                await trio.sleep(fault.seconds)
                self._stands_still -= 1
            case "disk":
                self.disk_is_full = True
                await trio.sleep(fault.seconds)
                self.disk_is_full = False
            case "coordinator":
                self._away = True
                await trio.sleep(fault.seconds)
                self._away = False
            case "claim_reorg":
                await self._reorganised(CLAIMED, OPEN, fault.seconds)
            case "settle_reorg":
                await self._reorganised(SETTLED, CLAIMED, fault.seconds)

    async def _reorganised(self, state: int, former: int, seconds: float) -> None:
        """Return the newest job in a state to the state before. The coordinator rebroadcasts the same bytes."""
        job = next((job for job, row in reversed(self.jobs.items()) if row["state"] == state), None)
        if job is None:
            return
        row, kept = self.jobs[job], dict(self.jobs[job])
        self.reorganised.add(job)
        row["state"], row["ended_because"] = former, 0
        if former == OPEN:
            row |= {"provider_id": "0", "claimed_at": "0"}
        self.note()
        await trio.sleep(seconds)
        if former == OPEN:
            if row["state"] == OPEN:
                row |= kept | {"claimed_at": str(int(self.now()))}
        else:
            while row["state"] == OPEN:  # noqa: ASYNC110 - the claim, too: it is mined again before the settle can be
                await trio.sleep(1)
            if row["state"] == CLAIMED and self.now() <= int(row["claimed_at"]) + int(row["sla_secs"]):
                row |= {name: kept[name] for name in ("state", "ended_because", "completion_tok", "result_cid")}
        self.note()


def _pending() -> httpx.Response:
    return error(504, "0x" + "ab" * 32, "receipt_timeout")


def _instead(kind: str) -> httpx.Response:
    match kind:
        case "unavailable":
            return error(503, "relay_queue_timeout", "relay_unavailable", retryable=True)
        case "busy":
            return error(429, None, "busy", retryable=True)
        case "proxy":
            return httpx.Response(502)
        case "never":
            return _pending()
        case "missing":
            return httpx.Response(404)
        case _:
            return answer(500)
