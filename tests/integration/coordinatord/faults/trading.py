"""A coordinator and a provider as real processes, under clients that keep posting until an outage is over.

async with trading(setup, folder) as market:
    await market.survive(outage, code="database_unavailable")
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import anyio
import attrs
import httpx

from common.box import PublicKey
from common.container import seal
from common.envelope import Envelope
from coordinatord.api.system.readiness import ReadinessReason
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.provider import key_variables, write_config
from devnet.world import World
from tests.integration.coordinatord.faults.load import Load
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment
from tests.support.faults.descriptors import limited

RECOVERY_S: Final = 5.0
LEASE_S: Final = 1
_OUTAGE_S: Final = 3.0
MODEL: Final = "demo/text-small"
_BODIES: Final = 80  # more than are posted during the longest outage
_POST_PAUSE_S: Final = 0.25
_COORDINATORS_LOG, _PROVIDERS_LOG = "coordinatord.log", "svcd.log"


@attrs.frozen
class TradingMarket:
    """Coordinator and svcd in separate processes, with clients that post jobs.

    The database URL of `setup` is the test's, which works during the outage.
    """

    setup: MarketSetup
    folder: Path
    settings: Mapping[str, str]  # of the coordinator
    coordinator: Coordinator
    provider: "subprocess.Popen[bytes]"
    providers_port: int  # of its metrics
    http: httpx.AsyncClient
    load: Load
    bodies: list[Body]

    @property
    def coordinators_log(self) -> Path:
        return self.folder / _COORDINATORS_LOG

    @property
    def providers_log(self) -> Path:
        return self.folder / _PROVIDERS_LOG

    @property
    def providers_health_url(self) -> str:
        return f"http://127.0.0.1:{self.providers_port}/healthz"

    @property
    def providers_metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.providers_port}/metrics"

    async def survive(
        self,
        outage: AbstractAsyncContextManager[object],
        code: str | None,
        *,
        reason: ReadinessReason | None = None,
        seconds: float = _OUTAGE_S,
    ) -> None:
        """Trade before, during and after `outage`. During it /readyz must name `code`; nothing may be lost.

        `code` None: nothing is expected of /readyz, which need not even answer.
        `reason`: the reason of /readyz at the end of the outage. `seconds`: how long the outage lasts once /readyz
        has named it.
        """
        async with anyio.create_task_group() as tasks:
            over = anyio.Event()
            for n in range(2):
                tasks.start_soon(self._post_until, over, self.bodies[n::2])
            with anyio.fail_after(30):
                await self.load.until_posted(2)
            async with outage:
                if code is not None:
                    body = await self._until_named(code)
                    assert body["ready"] is False
                    assert body["reason"] in get_args(ReadinessReason)
                await anyio.sleep(seconds)
                if code is not None:
                    last = await self._readiness()
                    assert last["code"] == code
                    assert reason in (None, last["reason"])
                self._assert_processes_run()
            posted = len(self.load.posted)
            with anyio.fail_after(RECOVERY_S):
                await until(self.is_ready)
                await until(partial(self._answers, self.coordinator.metrics_url))
                await until(partial(self._answers, self.providers_metrics_url))
                await self.load.until_posted(posted + 1)
            over.set()
        await self._settle_everything()

    async def _settle_everything(self) -> None:
        """Wait until each posted job is settled, then check every promise."""
        with anyio.fail_after(60):
            for job in self.load.posted:
                await until(partial(self._is_settled, job))
            await until(self.provider_is_healthy)
        self._assert_processes_run()
        assert self.load.unspecified() == []
        assert await self.setup.violations(self.load.posted) == []

    async def _post_until(self, over: anyio.Event, bodies: list[Body]) -> None:
        for body in bodies:
            if over.is_set():
                return
            await self.load.submit([body])
            await anyio.sleep(_POST_PAUSE_S)

    async def _readiness(self) -> dict[str, Any]:
        try:
            body: dict[str, Any] = (await self.http.get("/readyz")).json()
        except httpx.TransportError:
            return {"code": "unanswered", "ready": False}
        return {"code": None, **body}

    async def is_ready(self) -> bool:
        return bool((await self._readiness())["ready"])

    async def _until_named(self, code: str) -> dict[str, Any]:
        named: dict[str, Any] = {}

        async def is_named() -> bool:
            named.update(await self._readiness())
            return bool(named["code"] == code)

        with anyio.fail_after(10):
            await until(is_named)
        return named

    async def _is_settled(self, job: bytes) -> bool:
        return bool((await self.http.get(f"/v1/jobs/0x{job.hex()}")).json().get("status") == "completed")

    async def provider_is_healthy(self) -> bool:
        self._assert_processes_run()
        return await self._answers(self.providers_health_url)

    async def _answers(self, url: str) -> bool:
        """Return True if a GET is answered 200."""
        try:
            return (await self.http.get(url)).status_code == 200
        except httpx.TransportError:
            return False

    def _assert_processes_run(self) -> None:
        assert self.coordinator.process.poll() is None, "the coordinator ended"
        assert self.provider.poll() is None, "svcd ended"


@asynccontextmanager
async def trading(
    setup: MarketSetup,
    folder: Path,
    *,
    coordinators_database_url: str | None = None,
    coordinator_settings: Mapping[str, object] | None = None,
    port: int | None = None,
    providers_url: str | None = None,
    process_environment: Mapping[str, str] | None = None,
    descriptors: int | None = None,
    orders: int = _BODIES,
) -> AsyncIterator[TradingMarket]:
    """Start both daemons.

    `coordinators_database_url`: the coordinator's way to the database if it differs from the test's.
    `providers_url`: the coordinator's address as svcd has it. `process_environment`: variables of both daemons.
    `descriptors`: how many each daemon may have. `orders`: how many jobs clients can post.
    """
    world, account = setup.world, setup.world.wallets.demo_provider
    extra = dict(process_environment or {})
    url = coordinators_database_url or setup.database_url
    settings = environment(world, url, MATCH_LEASE_MS=1000 * LEASE_S, **(coordinator_settings or {})) | extra
    port, provider_port = port or pick_free(), pick_free()
    with (folder / _COORDINATORS_LOG).open("wb") as log, (folder / _PROVIDERS_LOG).open("wb") as provider_log:
        async with (
            running(settings, port, pick_free(), errors=log.fileno(), descriptors=descriptors) as coordinator,
            httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
        ):
            config = write_config(
                folder,
                coordinator_url=providers_url or coordinator.base_url,
                gateway=world.pins.gateway,
                address_book=world.market.address_book,
                metrics_port=provider_port,
            )
            command = limited((sys.executable, "-m", "svcd", "run", "--config", str(config)), descriptors)
            keys = {"PATH": os.environ["PATH"], **key_variables(account), **extra}
            provider = subprocess.Popen(command, env=keys, stderr=provider_log)  # noqa: ASYNC220 - returns at once
            try:
                client, load = setup.party(http), Load([coordinator.base_url])
                bodies = [await _designated(client, account, world) for _ in range(orders)]
                market = TradingMarket(
                    *(setup, folder, settings),
                    *(coordinator, provider, provider_port, http, load, bodies),
                )
                with anyio.fail_after(60):
                    await until(market.provider_is_healthy)
                yield market
            finally:
                provider.kill()
                provider.wait()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110 - the change is in another process
        await anyio.sleep(0.05)


async def _designated(client: Party, account: DevWallet, world: World) -> Body:
    """A paid submission that only the running provider may take."""
    own_key = PublicKey(account.box_key)
    envelope = Envelope(client.wallet.address, MODEL, {"input": "word"}, own_key).encode()
    container = seal(own_key, world.market.address_book["chainId"], client.registry, client.wallet.address, envelope)
    return await client.paid(container, designated=world.market.provider_ids[account.address])
