"""Minimal buyers and providers that retry, over HTTP, with keys of the local market."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import httpx

from common.api.states import JobState
from common.quotes import FeeTerms
from common.scalars import base64_of
from devnet.catalogue import FEE_BPS, GAS_FEE
from tests.integration.coordinatord.scene.party import Body, Party
from tests.simulation.plan import Post
from tests.simulation.trace import Trace
from tests.support.fakes.submissions import Submitter, jsonl

_AGAIN: Final = (425, 429, 500, 502, 503, 504)
_RETRY_TIMEOUT_S: Final = 600.0
_POLLS_EVERY: Final = 3.0
_SLOTS: Final = 3


@attrs.define
class Told:
    """Everything that the coordinators reported to clients and providers."""

    ordered: dict[str, float] = attrs.field(factory=dict)  # by job: start time of an order that is not part of a batch
    posted: dict[str, float] = attrs.field(factory=dict)  # by job: time
    promised: set[str] = attrs.field(factory=set)  # posted jobs that were answered 201
    settled: dict[str, float] = attrs.field(factory=dict)  # by job, answered 201: time
    cancelled: set[str] = attrs.field(factory=set)
    sealed: set[str] = attrs.field(factory=set)  # posted jobs sealed to the real svcd
    opened: dict[str, bool] = attrs.field(factory=dict)  # by opened job: was it settled?
    batches: list[str] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    numbers: dict[str, int] = attrs.field(factory=dict)

    def named(self, job: str) -> str:
        return f"job {self.numbers.setdefault(job, len(self.numbers))}"


@attrs.define
class Insisting:
    """A client that retries until it gets a conclusive response."""

    party: Party
    told: Told
    trace: Trace
    chance: random.Random
    role: str = "client"
    only: int = 0  # the only provider that orders go to, or whose orders are taken

    async def ask(
        self, method: str, path: str, *, session: bool = False, patience: float = _RETRY_TIMEOUT_S, **request: Any
    ) -> httpx.Response | None:
        """Return None if no conclusive response came in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while loop.time() < until:
            response = await self._once(method, path, session, request)
            if response is not None and response.status_code not in _AGAIN:
                return response
            await asyncio.sleep(self.chance.uniform(0.5, 4))
        return None

    async def _once(self, method: str, path: str, session: bool, request: Mapping[str, Any]) -> httpx.Response | None:
        headers = dict(request.get("headers", {}))
        try:
            if session:
                if not self.party.token:
                    await self._sign_in()
                headers |= self.party.authorization
            response = await self.party.http.request(method, path, **{**request, "headers": headers})
        except httpx.TransportError:
            return None
        if response.status_code == 500:
            self.told.failures.append(f"{method} {path.partition('?')[0]} was answered 500: {response.text[:200]}")
        if session and response.status_code == 401:
            self.party.token = ""
            return None
        return response

    async def _sign_in(self) -> None:
        nonce = await self.party.http.get("/auth/nonce", params={"address": self.party.address})
        if nonce.status_code != 200:
            raise httpx.ReadError("no nonce")
        body = self.party.answer_to(nonce.json()["nonce"], role=self.role)
        answer = await self.party.http.post("/auth/session", json=body)
        if answer.status_code != 200:
            raise httpx.ReadError("no session")
        self.party.token = answer.json()["token"]


@attrs.define
class Buyer(Insisting):
    """With `changes_its_mind`, the buyer cancels its posts some seconds later."""

    async def buy(self, post: Post, *, changes_its_mind: bool) -> None:
        await asyncio.sleep(post.at)
        content = self.party.container(b"x" * post.length)
        order = self.party.order(content, sla_secs=post.window, designated=self.only)
        job = order["job_id"]
        self.told.ordered[job] = post.at
        self.told.named(job)
        quoted = await self.ask("POST", "/v1/jobs", json=order)
        if quoted is None or quoted.status_code != 402:
            self._note(job, "quote", quoted)
            return
        paid = self.party.pay(order, int(quoted.json()["quote"]["amount"]))
        posted = await self.ask("POST", "/v1/jobs", json={**paid, "container": base64_of(content)})
        self._note(job, "post", posted)
        if posted is None:
            return
        # After a lost response, a retry may find the job already on the chain.
        if posted.status_code == 201 or "DuplicateJob" in posted.text:
            if posted.status_code == 201:
                self.told.promised.add(job)
            self.told.posted[job] = asyncio.get_running_loop().time()
            if changes_its_mind:
                await asyncio.sleep(self.chance.uniform(0, 20))
                await self._cancel(job)

    async def _cancel(self, job: str) -> None:
        answer = await self.ask("POST", f"/v1/jobs/{job}/cancel", json=self.party.cancel(job))
        self._note(job, "cancel", answer)
        if answer is not None and answer.status_code == 200:
            self.told.cancelled.add(job)

    def _note(self, job: str, what: str, answer: httpx.Response | None) -> None:
        status = None if answer is None else answer.status_code
        said = "" if answer is None or status in (200, 201, 402) else answer.text[:120].replace(job, "")
        self.trace.add(f"{what} of {self.told.named(job)}: {status} {said}")
        if status not in (200, 201, 402):
            self.told.refused.append(f"{what} of {self.told.named(job)}: {status} {said}")


@attrs.define
class BatchOwner(Insisting):
    """A client that uploads a file of submissions and posts them as a batch."""

    async def order(self, post: Post, chain_id: int) -> None:
        await asyncio.sleep(post.at)
        party = self.party
        submitter = Submitter(
            party.wallet, party.domains, chain_id, party.registry, FeeTerms(FEE_BPS, GAS_FEE), party.box_key
        )
        lines = [
            submitter.line(b"x" * post.length, sla_secs=post.window, designated=self.only) for _ in range(post.lines)
        ]
        for line in lines:
            self.told.named(line["job_id"])
        form: Body = {"data": {"purpose": "batch"}, "files": {"file": ("batch.jsonl", jsonl(lines))}}
        uploaded = await self.ask("POST", "/v1/files", session=True, **form)
        if uploaded is None or uploaded.status_code != 200:
            self.told.refused.append(f"upload: {uploaded and uploaded.text[:120]}")
            return
        body = {"endpoint": "/v1/responses", "completion_window": "24h", "input_file_id": uploaded.json()["id"]}
        created = await self.ask("POST", "/v1/batches", session=True, json=body)
        self.trace.add(f"batch: {created and created.status_code}")
        if created is None or created.status_code != 200:
            self.told.refused.append(f"batch: {created and created.text[:120]}")
        else:
            self.told.batches.append(created.json()["id"])


@attrs.define
class Provider(Insisting):
    """A provider that polls, claims its leases, and settles, fails or forgets them. With `early`, it is also offered
    jobs whose post is under way, so a post, its claim and its settle may share a block."""

    early: bool = False
    forgets: Callable[[], bool] = lambda: False
    working: dict[str, "asyncio.Task[None]"] = attrs.field(factory=dict)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self.chance.uniform(0.5, _POLLS_EVERY))
                for row in await self._poll():
                    if row["job_id"] not in self.working:
                        self.working[row["job_id"]] = tasks.create_task(self._work(row))

    async def _poll(self) -> list[Body]:
        free = max(0, _SLOTS - sum(not task.done() for task in self.working.values()))
        query = {"state": "Open", "model": "1", "free": str(free), "limit": str(max(1, free))}
        if self.early:
            query["pending"] = "1"
        answer = await self._once("GET", "/evm/jobs", True, {"params": query})
        if answer is None or answer.status_code != 200 or not free:
            return []
        told = answer.json()
        rows: list[Body] = [*told["jobs"], *told.get("pending", ())]
        return [row for row in rows if not self.only or int(row["designated"]) == self.only]

    async def _work(self, row: Body) -> None:
        job, named = row["job_id"], self.told.named(row["job_id"])
        claimed = await self._op("claim", job, self.party.claim(job), 120)
        if not claimed:
            self.working.pop(job, None)  # the next provider that leases the job tries again
            return
        await asyncio.sleep(self.chance.uniform(0, 12))
        if self.forgets():
            self.trace.add(f"{named} is forgotten")
            return
        if self.chance.random() < 0.15:
            await self._op("fail", job, self.party.fail(job), 300)
            return
        units = 1 + self.chance.randrange(20)
        result = base64_of(self.chance.randbytes(400))
        until = asyncio.get_running_loop().time() + 300
        while asyncio.get_running_loop().time() < until:
            if await self._op("settle", job, self.party.settle(job, units, result=result), 120):
                self.told.settled[job] = asyncio.get_running_loop().time()
                return
            await asyncio.sleep(6)
            state = await self._state(job)
            if state == JobState.OPEN:  # a reorg removed the claim, so the job is leased again
                self.working.pop(job, None)
            if state in (JobState.OPEN, JobState.SETTLED, JobState.CANCELLED):
                return

    async def _state(self, job: str) -> int | None:
        answer = await self.ask("GET", f"/evm/jobs/{job}", patience=60)
        return None if answer is None or answer.status_code != 200 else int(answer.json()["state"])

    async def _op(self, op: str, job: str, body: Body, patience: float) -> bool:
        answer = await self.ask("POST", "/evm/ops", session=True, json=body, patience=patience)
        status = None if answer is None else answer.status_code
        said = "" if answer is None or status == 201 else answer.text[:120].replace(job, "")
        self.trace.add(f"{op} of {self.told.named(job)}: {status} {said}")
        return status == 201
