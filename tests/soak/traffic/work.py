"""Work that buyers repeat. Each piece returns its outcome, and complains about anything that must not happen."""

import secrets
import time
from typing import Any, Final

import anyio
import attrs
import httpx

from common.secp256k1 import Wallet
from devnet.catalogue import MODELS
from svc.core.orders import PreparedOrder
from svc.errors import ApiError, ConnectionFailed, JobFailed, ResultUnreadable, SvcError
from svc.signers import LocalSigner
from tests.soak.answering import counted, plain_http
from tests.soak.ground import Ground
from tests.soak.programs import BATCH_SLA_SECONDS, RATE_IN, RATE_OUT, SLA_SECONDS
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer

_TEXT: Final = MODELS[0].name
_WINDOW: Final = f"{SLA_SECONDS}s"
_READ_TIMEOUT_S: Final = 60.0  # for an unreachable gateway to recover
_POST_TIMEOUT_S: Final = 100.0  # for a sent post without a receipt, and for its whole job
_LARGE_BYTES: Final = 16_000_000  # above the inline limit, so container and result both use uploads


@attrs.define
class Work:
    """State shared by all buyers. `promised` holds the jobs of this round and the last one that a 201 has confirmed. A
    reorganisation may undo the last blocks of the last round."""

    ground: Ground
    timeline: Timeline
    jobs: int = 0  # promised in all rounds
    _promised: set[bytes] = attrs.field(factory=set)
    _before: set[bytes] = attrs.field(factory=set)

    @property
    def promised(self) -> set[bytes]:
        return self._promised | self._before

    def promise(self, job_id: bytes) -> None:
        self._promised.add(job_id)
        self.jobs += 1

    def end_round(self) -> None:
        self._promised, self._before = set(), self._promised

    async def every_provider_sells(self, buyer: Buyer) -> bool:
        """Wait until each provider sells at every ordered window. From then on no order lacks a provider."""
        for window in (_WINDOW, f"{BATCH_SLA_SECONDS}s"):
            async with buyer.anywhere() as client:
                if len(await client.probe(_TEXT, new_question(), window=window)) < len(self.ground.providers):
                    return False
        return True

    async def open_job(self, buyer: Buyer) -> str:
        """Post an open job for any provider, sealed to the escrow."""
        return await self._bought(buyer, {"rate_in": RATE_IN, "rate_out": RATE_OUT})

    async def market_job(self, buyer: Buyer) -> str:
        """Post a job for the cheapest live provider, sealed to it."""
        return await self._bought(buyer, {})

    async def designated_job(self, buyer: Buyer) -> str:
        """Post a job for a provider that the client chose, live or not."""
        chosen = buyer.random.randrange(len(self.ground.providers)) + 1  # ids in the order of registration
        return await self._bought(buyer, {"provider": chosen, "rate_in": RATE_IN, "rate_out": RATE_OUT})

    async def large_job(self, buyer: Buyer) -> str:
        return await self._bought(
            buyer, {"rate_in": RATE_IN, "rate_out": RATE_OUT}, new_question() + "." * _LARGE_BYTES
        )

    async def uploaded_job(self, buyer: Buyer) -> str:
        """Upload the container first, and reference it."""
        question = new_question()
        prepared = await self._prepared(buyer, question)
        async with buyer.anywhere() as client:
            amount = int((await client.quote(prepared)).quote.amount)
            uploaded = await client.files.upload(prepared.sealed_order.sealed_container.container, "input")
        body = prepared.submission(amount, await _signed(buyer, prepared, amount), uploaded.svc.cid)
        since = self.timeline.now
        answer = await self._sent(buyer.random.choice(self.ground.base_urls), body)
        if answer.status_code != 201:
            return counted(answer, self.timeline, {409, 504})
        self.promise(prepared.sealed_order.job_id)
        return await self._ended(buyer, prepared, question, since)

    async def job_posted_twice(self, buyer: Buyer) -> str:
        """Send the same submission to every coordinator at once. Only one job may result, and all successful responses
        must agree."""
        question = new_question()
        prepared = await self._prepared(buyer, question)
        async with buyer.anywhere() as client:
            amount = int((await client.quote(prepared)).quote.amount)
        body = prepared.submission(amount, await _signed(buyer, prepared, amount))
        answers: list[httpx.Response] = []
        since = self.timeline.now

        async def post(base_url: str) -> None:
            try:
                answers.append(await self._sent(base_url, body))
            except httpx.TransportError:
                return  # a coordinator that is down must not cancel the other tasks of the group

        async with anyio.create_task_group() as posting:
            for base_url in self.ground.base_urls:
                posting.start_soon(post, base_url)
        outcomes = [counted(answer, self.timeline, {201, 409, 504}) for answer in answers]
        if "201" not in outcomes:
            return " / ".join(sorted(outcomes)) or "no answer"
        self.promise(prepared.sealed_order.job_id)
        return await self._ended(buyer, prepared, question, since)

    async def quoted(self, buyer: Buyer) -> str:
        """Request quotes without buying."""
        async with buyer.anywhere() as client:
            candidates = await client.probe(_TEXT, new_question(), window=_WINDOW)
        prepared = await self._prepared(buyer, new_question())
        async with buyer.anywhere() as client:
            quoted = await client.quote(prepared)
        if int(quoted.quote.amount) <= 0:
            self.timeline.complain(f"a quote of {quoted.quote.amount} for an order that costs")
        return f"quoted, {len(candidates)} candidates"

    async def cancelled_job(self, buyer: Buyer) -> str:
        """Post a job below every ask, so that no provider claims it, and cancel it."""
        async with buyer.anywhere() as client:
            prepared = await client.prepare(_TEXT, new_question(), window=_WINDOW, rate_in=1, rate_out=1)
            await self._post(buyer, prepared)
        job_id = prepared.id
        buyer.doing = f"cancelling {job_id}"
        async with buyer.anywhere() as client:
            await client.cancel(job_id)
        async with buyer.anywhere() as client:
            job = await client.wait(job_id, timeout=120)
        return job.status

    async def _prepared(self, buyer: Buyer, question: str) -> PreparedOrder:
        async with buyer.anywhere() as client:
            return await client.prepare(_TEXT, question, window=_WINDOW, rate_in=RATE_IN, rate_out=RATE_OUT)

    async def _sent(self, base_url: str, body: dict[str, Any]) -> httpx.Response:
        async with plain_http(base_url, timeout=90) as http:
            return await http.post("/v1/jobs", json=body)

    async def _bought(self, buyer: Buyer, terms: dict[str, Any], question: str | None = None) -> str:
        asked = question if question is not None else new_question()
        buyer.doing = "preparing"
        async with buyer.anywhere() as client:
            prepared = await client.prepare(_TEXT, asked, window=_WINDOW, **terms)
        since = self.timeline.now
        mined = await self._post(buyer, prepared)
        return await self._ended(buyer, prepared, asked, since, None if mined else _POST_TIMEOUT_S)

    async def _post(self, buyer: Buyer, prepared: PreparedOrder) -> bool:
        """Submit the order until a coordinator accepts it. A repeated order is the same job. Return False if the
        order was sent but is not mined, because the coordinator has then promised nothing."""
        buyer.doing = f"posting {prepared.id}"
        while True:
            try:
                async with buyer.anywhere() as client:
                    submitted = await client.submit(prepared, final=True)
            except SvcError as trouble:
                if not may_come_again(trouble):
                    raise
                buyer.doing = f"posting {prepared.id} after {trouble.code or trouble.type}"
                await anyio.sleep(0.5)
                continue
            if submitted.mined:
                self.promise(prepared.sealed_order.job_id)
            return submitted.mined

    async def _ended(
        self, buyer: Buyer, prepared: PreparedOrder, question: str, since: float, patience: float | None = None
    ) -> str:
        """Return the outcome of a posted job."""
        self.timeline.finished("post", since, "ok")
        buyer.doing = f"waiting for {prepared.id}"
        async with buyer.anywhere() as client:
            job = await client.wait(prepared.id, timeout=patience)
        if job.status != "completed":
            return job.status
        return await self._opened(buyer, prepared.id, question)

    async def _opened(self, buyer: Buyer, job_id: str, question: str) -> str:
        buyer.doing = f"opening {job_id}"
        until = time.monotonic() + _READ_TIMEOUT_S
        while True:
            try:
                async with buyer.anywhere() as client:
                    result = await client.open(job_id)
                break
            except (ResultUnreadable, ApiError, ConnectionFailed) as trouble:
                if time.monotonic() > until:
                    self.timeline.complain(f"I7: the result of {job_id} cannot be read: {trouble.code} {trouble}")
                    return "unreadable"
                await anyio.sleep(1)
        if question not in str(result.output):
            self.timeline.complain(f"the result of {job_id} answers something else")
        return "opened"


def may_come_again(trouble: SvcError) -> bool:
    return trouble.retryable or trouble.type == "receipt_timeout" or trouble.code == "outcome_unknown"


def outcome_of(trouble: SvcError, timeline: Timeline, what: str) -> str:
    """Classify failed work. Complain about responses that no client should get."""
    if isinstance(trouble, ApiError) and (trouble.status == 500 or trouble.type == "internal_error"):
        timeline.complain(f"{what} was answered {trouble.status} {trouble.type}: {trouble.message}")
    if isinstance(trouble, JobFailed):
        return f"job {trouble.code}"
    return str(trouble.code or trouble.type)


async def _signed(buyer: Buyer, prepared: PreparedOrder, amount: int) -> bytes:
    wallet = Wallet(bytes.fromhex(buyer.wallet.private_key[2:]))
    return await LocalSigner(wallet).sign(prepared.payment(amount))


def new_question() -> str:
    return f"What is {secrets.token_hex(16)}?"
