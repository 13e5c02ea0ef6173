"""Clients of every kind that work through a fault, and check every promise against what they saw.

    async with at_work(setup, folder) as witnesses:
        ...  # the fault
    assert await witnesses.violations() == []

A request without an answer, or with a retryable refusal, is sent again. Any other refusal is kept in `refused`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import asyncpg
import attrs
import httpx

from common.box import PublicKey
from common.container import seal
from common.envelope import Envelope
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.rpc.client import open_rpc
from devnet.accounts import DevWallet
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.faults.trading import LEASE_S, MODEL, TradingMarket, trading, until
from tests.integration.coordinatord.scene.party import Body, Party
from tests.soak.audits import install_audits
from tests.soak.timeline import Timeline
from tests.soak.traffic.streams import StreamWork, messages
from tests.soak.verdict import Remains, violations
from tests.support.coordinator import config_of
from tests.support.fakes.submissions import Submitter, jsonl
from tests.support.faults.rpc_proxy import rpc_proxy
from tests.support.faults.write_ahead import WriteAhead
from tests.support.invariants.liveness import liveness_violations
from tests.support.invariants.market_log import read_market_log

_ORDERS: Final = 60  # for each fault, more than are posted
_OPEN_ORDERS: Final = 20
_POST_PAUSE_S: Final = 0.5
_POSTED_WITHIN_S: Final = 15.0  # on a busy machine
_PAUSE_S: Final = 0.2
_QUIET_S: Final = 30.0  # limit of silence; heartbeats come about every 20
_ENDED_WITHIN_S: Final = 90.0
_RECLAIM_GRACE_S: Final = 120.0
_FINAL_STATUSES: Final = ("completed", "cancelled", "failed", "expired")
_KEPT: Final = 20  # ended jobs that are still read
_A_JOB_HAD_TWO_LESSEES: Final = (
    "select exists (select from lease_history where provider_id <> 0 group by job_id"
    " having count(distinct provider_id) > 1)"
)
_LOW_RATE: Final = 10_000  # below svcd's asks
_COUNT_UNENDED_RELAYS: Final = "select count(*) from relays where state in ('queued', 'signed')"


@attrs.define
class Witnesses:
    """Clients that work through a fault, and what they saw.

    `batches` counts the valid lines of each batch. `final_statuses` has the final status of each job, once reported.
    """

    market: TradingMarket
    write_ahead: WriteAhead
    streams: StreamWork
    owner: Party
    submitter: Submitter
    batches: dict[str, int] = attrs.field(factory=dict)
    final_statuses: dict[str, str] = attrs.field(factory=dict)
    withdrawn: list[str] = attrs.field(factory=list)
    resets: int = 0
    sessions: list[str] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)

    # --- clients ---------------------------------------------------------------------------------------------

    async def open_sessions(self) -> None:
        """Sign in repeatedly, so that the fault meets nonces and sessions."""
        wallet = self.market.setup.world.wallets.with_role("client")[2]
        client = self._party(wallet)
        while True:
            with suppress(_NotAnswered):
                nonce = (await self._read("/auth/nonce", address=client.address))["nonce"]
                answer = await self._post("/auth/session", client.answer_to(nonce, role="client"))
                if answer.status_code == 200:  # an asynchronous standby may lack the nonce
                    self.sessions.append(answer.json()["token"])
            await anyio.sleep(_PAUSE_S)

    async def compete_for_leases(self, wallet: DevWallet) -> None:
        """Poll for open jobs without claiming any. Each lease lapses, and another poller gets the job."""
        provider = self._party(wallet)
        query: dict[str, str | int] = {"state": "Open", "model": 1, "free": 1, "wait": 5}
        while True:
            with suppress(_NotAnswered):
                if not provider.token:
                    nonce = (await self._read("/auth/nonce", address=provider.address))["nonce"]
                    answer = await self._post("/auth/session", provider.answer_to(nonce, role="provider"))
                    provider.token = answer.json()["token"]
                answer = await self._get("/evm/jobs", query, provider.authorization)
                if answer.status_code == 401:  # an asynchronous standby lacked the session
                    provider.token = ""
                elif answer.json()["jobs"]:
                    await anyio.sleep(2 * LEASE_S)  # an earlier poll would renew the lease
            await anyio.sleep(_PAUSE_S)

    async def follow_events(self) -> None:
        """Read one history of events over reconnects."""
        parts = self.streams.histories.setdefault(id(self), [])
        while True:
            headers = {"last-event-id": str(parts[-1].last)} if parts else {}
            with suppress(httpx.TransportError):
                async with self.market.http.stream("GET", "/evm/events", headers=headers, timeout=_QUIET_S) as answer:
                    async for event_id, name in messages(answer):
                        self.resets += name == "reset"
                        self.streams.take(parts, event_id, name)
            await anyio.sleep(_PAUSE_S)

    async def read_jobs(self) -> None:
        """Read every job until it has a final status, and the last ones for longer."""
        while True:
            posted = ["0x" + job.hex() for job in tuple(self.market.load.posted)]
            pending = [job for job in posted if job not in self.final_statuses]
            for job in [*pending, *tuple(self.final_statuses)[-_KEPT:]]:
                with suppress(_NotAnswered):
                    self._take(await self._read(f"/v1/jobs/{job}/progress"))
            await anyio.sleep(_PAUSE_S)

    def _take(self, progress: Mapping[str, Any]) -> None:
        job, status = progress["job_id"], progress["status"]
        before = self.final_statuses.get(job)
        if before is not None and (progress["provisional"] or status != before):
            self.withdrawn.append(f"I14: job {job} was {before} in the end, and {status} after that")
        if status in _FINAL_STATUSES and not progress["provisional"]:
            self.final_statuses[job] = status

    async def create_batch(self, lines: int) -> str:
        """Create a batch of lines for svcd, and a broken one."""
        account = self.market.setup.world.wallets.demo_provider
        provider_id = self.market.setup.world.market.provider_ids[account.address]
        own_key = PublicKey(account.box_key)
        good = []
        for _ in range(lines):
            container = self._sealed(own_key, self.owner)
            good.append(self.submitter.of_container(container, designated=provider_id))
        file_id = (await self.owner.upload("batch", jsonl([*good, b"no json"]))).json()["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
        answer = await self.owner.http.post("/v1/batches", json=body, headers=self.owner.authorization)
        assert answer.status_code == 200, answer.text
        batch_id: str = answer.json()["id"]
        self.batches[batch_id] = lines
        return batch_id

    async def open_orders(self, count: int, **terms: int) -> list[Body]:
        """Return paid submissions that any provider may claim."""
        client = self._party(self.market.setup.world.wallets.with_role("client")[3])
        key = PublicKey(self.market.setup.world.wallets.escrow_key)
        return [await client.paid(self._sealed(key, client), **terms) for _ in range(count)]

    async def status_code(self, path: str, token: str) -> int:
        """Return the status of a GET, once the coordinator is ready."""
        while True:
            with suppress(_NotAnswered):
                return (await self._get(path, {}, {"authorization": f"Bearer {token}"})).status_code
            await anyio.sleep(_PAUSE_S)

    # --- promises --------------------------------------------------------------------------------------------

    async def wait_until_all_work_ended(self) -> None:
        """Wait until every batch is completed, no relay is queued or signed, every posted job was reported with a final
        status, and some job was leased to two providers."""
        connection = await asyncpg.connect(self.market.setup.database_url)

        async def all_relays_ended() -> bool:
            return not await connection.fetchval(_COUNT_UNENDED_RELAYS)

        async def a_job_had_two_lessees() -> bool:
            return bool(await connection.fetchval(_A_JOB_HAD_TWO_LESSEES))

        async def all_jobs_are_final() -> bool:
            return self.final_statuses.keys() == {"0x" + job.hex() for job in self.market.load.posted}

        try:
            with anyio.fail_after(_ENDED_WITHIN_S):
                for batch_id, lines in self.batches.items():
                    await self._until_completed(batch_id, lines)
                await until(all_relays_ended)
                await until(all_jobs_are_final)
                await until(a_job_had_two_lessees)
        finally:
            await connection.close()

    async def _until_completed(self, batch_id: str, lines: int) -> None:
        found: dict[str, Any] = {}

        async def is_completed() -> bool:
            found.update((await self._get(f"/v1/batches/{batch_id}", {}, self.owner.authorization)).json())
            return bool(found.get("status") == "completed")

        await until(is_completed)
        assert found["request_counts"] == {"completed": lines, "failed": 1, "total": lines + 1}

    async def violations(self) -> list[str]:
        """Check I1 to I14 after everything has ended."""
        market, promised = self.market, set(self.market.load.posted)
        config = config_of(market.settings)
        remains = Remains(
            market.setup.world.anvil, market.setup.database_url, market.setup.world.pins, market.setup.book, config
        )
        log = await read_market_log(market.setup.world.anvil.rpc_url, market.setup.book)
        return [
            *await violations(remains, promised),
            *liveness_violations(log, grace=_RECLAIM_GRACE_S),
            *await self.write_ahead.found(),
            *await self.streams.missed_events(market.setup.database_url),
            *self.streams.timeline.complaints,
            *self.withdrawn,
            *await self.false_answers(),
        ]

    async def false_answers(self) -> list[str]:
        """Return final responses that the chain does not confirm."""
        log = await read_market_log(self.market.setup.world.anvil.rpc_url, self.market.setup.book)
        settled = {"0x" + event.values["jobId"].hex() for event in log.named("JobSettled")}
        return [
            f"I14: job {job} was answered {status}, and was not settled"
            for job, status in self.final_statuses.items()
            if status == "completed" and job not in settled
        ]

    # --- requests -----------------------------------------------------------------------------------------

    async def _get(
        self, path: str, query: Mapping[str, str | int], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self._send(self.market.http.build_request("GET", path, params=query, headers=headers))

    async def _post(self, path: str, body: Body) -> httpx.Response:
        return await self._send(self.market.http.build_request("POST", path, json=body))

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = await self.market.http.send(request)
        except httpx.TransportError as error:
            raise _NotAnswered from error
        if answer.headers.get("x-svc-retryable") == "true":
            raise _NotAnswered
        if answer.status_code != 200:
            self.refused.append(f"{request.method} {request.url.path}: {answer.status_code} {answer.text}")
        return answer

    async def _read(self, path: str, **query: str) -> dict[str, Any]:
        answer = await self._get(path, query)
        if answer.status_code != 200:
            raise _NotAnswered
        found: dict[str, Any] = answer.json()
        return found

    def _party(self, wallet: DevWallet) -> Party:
        return self.market.setup.party(self.market.http, wallet)

    def _sealed(self, key: PublicKey, client: Party) -> bytes:
        answer_key = PublicKey(client.box_key)
        envelope = Envelope(client.wallet.address, MODEL, {"input": "word"}, answer_key).encode()
        return seal(key, self.market.setup.book.chain_id, client.registry, client.wallet.address, envelope)


class _NotAnswered(Exception):
    """No response, or a retryable refusal."""


@asynccontextmanager
async def at_work(
    setup: MarketSetup,
    folder: Path,
    *,
    coordinators_database_url: str | None = None,
    times: int = 1,
) -> AsyncIterator[Witnesses]:
    """Run a coordinator, svcd, buyers and witnesses until the block ends. Then wait until all orders have ended.

    Orders must outlast `times` faults.
    """
    await install_audits(setup.database_url)
    write_ahead = WriteAhead(setup.database_url)
    over = anyio.Event()
    async with (
        aclosing(write_ahead),
        rpc_proxy(setup.world.anvil.rpc_url, write_ahead) as proxy,
        trading(
            setup,
            folder,
            coordinators_database_url=coordinators_database_url,
            coordinator_settings={
                "RPC_URL": proxy.url,
                "ESCROW_MODE": "static",
                "OPERATOR_KEY": setup.world.wallets.operator.private_key,
            },
            orders=_ORDERS * times,
        ) as market,
        _witnessed(market, write_ahead) as witnesses,
    ):

        async def post(first: int, bodies: list[Body]) -> None:
            for body in bodies:
                if over.is_set():
                    return
                await market.load.submit([body], first)
                await anyio.sleep(_POST_PAUSE_S)

        open_orders = await witnesses.open_orders(_OPEN_ORDERS * times)
        async with anyio.create_task_group() as buyers:
            for first, bodies in enumerate((market.bodies[::2], market.bodies[1::2], open_orders)):
                buyers.start_soon(post, first, bodies)
            with anyio.fail_after(_POSTED_WITHIN_S):
                await market.load.until_posted(2)
            yield witnesses
            over.set()
        await _settled(market)
        await witnesses.wait_until_all_work_ended()
    assert market.load.unspecified() == []


async def _settled(market: TradingMarket) -> None:
    with anyio.fail_after(_ENDED_WITHIN_S):
        for job in market.load.posted:

            async def is_settled(job: bytes = job) -> bool:
                answer = await market.http.get(f"/v1/jobs/0x{job.hex()}")
                return bool(answer.json().get("status") == "completed")

            await until(is_settled)


async def posted_again(market: TradingMarket) -> None:
    """Wait until one more job is posted."""
    posted = len(market.load.posted)
    with anyio.fail_after(_POSTED_WITHIN_S):
        await market.load.until_posted(posted + 1)


@asynccontextmanager
async def _witnessed(market: TradingMarket, write_ahead: WriteAhead) -> AsyncIterator[Witnesses]:
    """Run the witnesses until the block ends."""
    book, owner = market.setup.book, market.setup.party(market.http, market.setup.world.wallets.with_role("client")[1])
    await owner.sign_in()
    async with open_rpc(market.setup.world.anvil.rpc_url) as rpc:
        terms = await JobRegistry(rpc, book.job_registry).read_fees()
    submitter = Submitter(owner.wallet, owner.domains, book.chain_id, book.job_registry, terms, owner.box_key)
    witnesses = Witnesses(market, write_ahead, StreamWork(Timeline()), owner, submitter)
    (unwanted,) = await witnesses.open_orders(1, rate_in=_LOW_RATE, rate_out=_LOW_RATE)
    (await market.http.post("/v1/jobs", json=unwanted)).raise_for_status()
    async with anyio.create_task_group() as tasks:
        for work in (witnesses.open_sessions, witnesses.follow_events, witnesses.read_jobs):
            tasks.start_soon(work)
        for poller in market.setup.world.wallets.with_role("provider")[1:]:
            tasks.start_soon(witnesses.compete_for_leases, poller)
        yield witnesses
        tasks.cancel_scope.cancel()
