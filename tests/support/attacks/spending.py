"""Attacks on the relayer's gas: ops, posts and cancels that cost their signer nothing.

Each attack uses a new stranger per attempt. `strike` makes one attempt and returns the response.
"""

import secrets
import time
from typing import ClassVar, Final

import anyio
import attrs
import httpx

from common import quotes
from common.quotes import FeeTerms
from devnet.anvil import CHAIN_ID
from devnet.catalogue import FEE_BPS, GAS_FEE
from tests.integration.coordinatord.scene.party import Body, Party
from tests.soak.answering import counted
from tests.soak.programs import RATE_IN, RATE_OUT, SLA_SECONDS
from tests.support.attacks.target import Target
from tests.support.fakes.submissions import Submitter, jsonl

_FEES: Final = FeeTerms(FEE_BPS, GAS_FEE)
# Below every ask, so that no provider works for jobs that cannot be opened.
_RATE: Final = 1
COST: Final = quotes.quote(_RATE, _RATE, 1000, 1000, _FEES).amount  # of a job from `_line`
AMPLE: Final = 10**9
_MAX_RETRIES: Final = 10  # retries until the index shows the stranger's transaction
_EVIDENCE: Final = b"\x01" * 32_768  # the longest allowed
_QUOTES: Final = tuple((1, sla, 1, 1) for sla in range(64))


@attrs.define
class Upkeep:
    """A self-registered, unlisted provider with the longest evidence, capacity and asks."""

    target: Target
    name: str = "upkeep"
    _party: Party | None = None
    _unknown: int = 0  # attempts answered as if the party were unregistered

    async def strike(self, n: int) -> str:
        outcome = await self._once(n)
        self._unknown = self._unknown + 1 if "403" in outcome else 0
        if self._unknown > _MAX_RETRIES:  # a reorg removed the registration
            self._party, self._unknown = None, 0
        return outcome

    async def _once(self, n: int) -> str:
        async with self.target.http() as http:
            if self._party is None:
                party = await self.target.stranger(self.name, http)
                await self.target.register(party)
                self._party = party
            party, party.http = self._party, http
            if (refused := await self.target.sign_in(party, "provider")) is not None:
                return refused  # the index does not have the registration yet
            match n % 3:
                case 0:
                    answer = await party.run(party.set_identity(party.box_key, _EVIDENCE))
                case 1:
                    answer = await party.run(party.request_capacity(1 + n % 7))
                case _:
                    answer = await party.publish(party.asks(await self.target.provider_id(party), *_QUOTES))
        return counted(answer, self.target.timeline, {200, 201, 403, 409, 504})


@attrs.define
class PostsOnOneBalance:
    """Concurrent posts of a wallet that can pay for one."""

    target: Target
    name: str = "posts on one balance"
    at_once: int = 6

    async def strike(self, _n: int) -> str:
        async with self.target.http(timeout=90) as http:
            party = await self.target.stranger(self.name, http, COST + COST // 2)
            bodies = [_line(party) for _ in range(self.at_once)]
            outcomes: list[str] = []

            async def post(body: Body) -> None:
                try:
                    answer = await http.post("/v1/jobs", json=body)
                except httpx.TransportError as gone:
                    outcomes.append(type(gone).__name__)
                    return
                outcomes.append(counted(answer, self.target.timeline, {201, 409, 504}))

            async with anyio.create_task_group() as posting:
                for body in bodies:
                    posting.start_soon(post, body)
        if outcomes.count("201") > 1:
            self.target.timeline.complain(f"I12: a balance for one job backs {outcomes.count('201')} posts")
        return " / ".join(sorted(set(outcomes)))


@attrs.define
class PostsAndCancels:
    """Posts that are cancelled, and repeated cancels. The wallet has money but never pays."""

    target: Target
    name: str = "posts and cancels"
    at_once: int = 3
    wallet_lasts: int = 40  # strikes per wallet
    _party: Party | None = None

    async def strike(self, n: int) -> str:
        outcomes: set[str] = set()
        async with self.target.http(timeout=90) as http:
            if self._party is None or n % self.wallet_lasts == 0:
                self._party = await self.target.stranger(self.name, http, AMPLE)
            self._party.http = http

            async def post_and_cancel(party: Party) -> None:
                try:
                    outcomes.add(await self._once(party))
                except httpx.TransportError as gone:
                    outcomes.add(type(gone).__name__)

            async with anyio.create_task_group() as striking:
                for _ in range(self.at_once):
                    striking.start_soon(post_and_cancel, self._party)
        self._party = _unless_broke(self._party, outcomes)
        return " / ".join(sorted(outcomes))

    async def _once(self, party: Party) -> str:
        posted = await party.http.post("/v1/jobs", json=_line(party))
        outcome = counted(posted, self.target.timeline, {201, 409, 504})
        if posted.status_code != 201:
            return outcome
        job = posted.json()["job_id"]
        for seconds in range(3):
            body = party.cancel(job, int(time.time()) - seconds)
            answer = await party.http.post(f"/v1/jobs/{job}/cancel", json=body)
            outcome = counted(answer, self.target.timeline, {200, 409, 504})
        return f"cancel {outcome}"


@attrs.define
class UploadedBatch:
    """One upload of many funded lines, so that two requests cause many posts."""

    target: Target
    lines: int = 80
    name: str = "uploaded batch"
    wallet_lasts: int = 10
    _party: Party | None = None
    _batch: str = ""

    async def strike(self, n: int) -> str:
        async with self.target.http() as http:
            if self._party is None or n % self.wallet_lasts == 0:
                self._party, self._batch = await self.target.stranger(self.name, http, AMPLE), ""
            party, party.http = self._party, http
            if (refused := await self.target.sign_in(party)) is not None:
                return refused
            if not self._batch:
                return await self._created(party)
            answer = await http.get(f"/v1/batches/{self._batch}", headers=party.authorization)
            return f"read {counted(answer, self.target.timeline, {200})}"

    async def _created(self, party: Party) -> str:
        lines = jsonl(_line(party) for _ in range(self.lines))
        uploaded = await party.upload("batch", lines, "batch.jsonl")
        if uploaded.status_code != 200:
            return f"upload {counted(uploaded, self.target.timeline, {200})}"
        body = {
            "endpoint": "/v1/responses",
            "completion_window": "24h",
            "input_file_id": uploaded.json()["id"],
        }
        answer = await party.http.post("/v1/batches", json=body, headers=party.authorization)
        if answer.status_code == 200:
            self._batch = answer.json()["id"]
        return f"created {counted(answer, self.target.timeline, {200})}"


@attrs.define
class FullBatches:
    """Funded posts queued before the first is signed, so that transactions are as full as possible."""

    target: Target
    name: str = "full batches"
    at_once: int = 130

    async def strike(self, _n: int) -> str:
        outcomes: list[str] = []
        async with self.target.http(timeout=90) as http:
            party = await self.target.stranger(self.name, http, AMPLE)

            async def post(body: Body) -> None:
                try:
                    answer = await http.post("/v1/jobs", json=body)
                except httpx.TransportError as gone:
                    outcomes.append(type(gone).__name__)
                    return
                outcomes.append(counted(answer, self.target.timeline, {201, 409, 504}))

            async with anyio.create_task_group() as posting:
                for _ in range(self.at_once):
                    posting.start_soon(post, _line(party))
        return " / ".join(sorted(set(outcomes)))


@attrs.define
class Bait:
    """Not an attack: orders that providers want, to check that they still reach them."""

    NAME: ClassVar = "bait"

    target: Target
    _party: Party | None = None

    async def strike(self, _n: int) -> str:
        async with self.target.http(timeout=90) as http:
            self._party = self._party or await self.target.stranger(self.NAME, http, AMPLE)
            party, party.http = self._party, http
            line = _line(party, rate_in=RATE_IN, rate_out=RATE_OUT, sla_secs=SLA_SECONDS)
            return counted(await http.post("/v1/jobs", json=line), self.target.timeline, {201})


@attrs.define
class UnwantedOrders:
    """Orders designated to a provider at rates below its ask, to fill its leases."""

    target: Target
    provider_id: int
    name: str = "unwanted orders"
    wallet_lasts: int = 40
    _party: Party | None = None

    async def strike(self, n: int) -> str:
        async with self.target.http(timeout=90) as http:
            if self._party is None or n % self.wallet_lasts == 0:
                self._party = await self.target.stranger(self.name, http, AMPLE)
            party, party.http = self._party, http
            body = _line(party, designated=self.provider_id)
            answer = await http.post("/v1/jobs", json=body)
        outcome = counted(answer, self.target.timeline, {201, 409, 504})
        self._party = _unless_broke(party, {outcome})
        return outcome


def _line(party: Party, **terms: int) -> Body:
    """Make a line without a quote. A stranger does not wait for quotes, and a failing coordinator gives none."""
    submitter = Submitter(party.wallet, party.domains, CHAIN_ID, party.registry, _FEES, party.box_key)
    return submitter.line(secrets.token_bytes(8), **{"rate_in": _RATE, "rate_out": _RATE, **terms})


def _unless_broke(party: Party, outcomes: set[str]) -> Party | None:
    """Return None if a reorg removed the party's tokens. The next stranger gets new ones."""
    return None if outcomes == {"409 InsufficientBalance"} else party
