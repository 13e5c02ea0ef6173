"""A complete coordinator in this process, without a socket: the application over a real database, chain and store."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import anyio
import attrs
import httpx

from common.daemon.asgi import ASGIApp
from common.daemon.secrets import Secret
from common.domains import Domains
from coordinatord.api.escrow.hosting import Escrow
from coordinatord.api.system.routes import StopFlag
from coordinatord.base.clock import system_clock
from coordinatord.chain.relayer.relaying import Relaying
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes
from coordinatord.run import app
from coordinatord.run.application import compose_application
from coordinatord.run.config import Config
from coordinatord.run.dependencies import Dependencies, build_containers, open_pin_store
from coordinatord.run.escrow import open_escrow
from coordinatord.run.janitor import Janitor
from coordinatord.run.signer import open_signer
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.notices import Notices
from coordinatord.storage.database.replicas import open_replicas
from coordinatord.storage.pins.pinned_sql import PinnedKeys
from coordinatord.storage.pins.requests import RequestSigner, StoreRequests
from coordinatord.storage.pins.store import PinningStore, PinStore, bucket_url
from devnet.world import World
from tests.integration.coordinatord.scene.faults import Faults, node_transport
from tests.support.coordinator import VARIABLE, config_of
from tests.support.fakes.streamed import http_over

# On a busy machine a test's client may pause for long, and all clients of a test share an address.
LIMITS: Final[dict[str, object]] = {
    "body_stall_timeout_s": 60,
    "body_min_bytes_per_s": 1,
    "requests_burst": 100_000,
    "connections_per_caller": 100_000,
    "uploads_per_caller": 1000,
}


def environment(world: World, database_url: str, **settings: object) -> dict[str, str]:
    """Return variables of a coordinator. Settings in lower case are its `Limits`."""
    relayer = world.wallets.with_role("relayer")[0]
    return {
        "ADDRESSES_JSON": json.dumps(world.market.address_book),
        "DATABASE_URL": database_url,
        "RELAYER_KEY": relayer.private_key,
        "RPC_URL": world.anvil.rpc_url,
        "PIN_STORE_ENDPOINT": world.pins.endpoint,
        "PIN_STORE_KEY": world.pins.key,
        "PIN_STORE_SECRET": world.pins.secret,
        "PIN_STORE_BUCKET": world.pins.bucket,
        "BLOCK_TIME_MS": "100",
        "METRICS_PORT": "0",
        "REQUESTS_PER_SECOND": "100000",
        VARIABLE: json.dumps(LIMITS | {name: value for name, value in settings.items() if name.islower()}),
        **{name: str(value) for name, value in settings.items() if name.isupper()},
    }


@attrs.frozen
class Seen:
    """One response of the coordinator. `code` is an error's code, or its type if the code is null."""

    route: str
    status: int
    code: str | None


@attrs.define
class Stage:
    http: httpx.AsyncClient
    ground: Dependencies
    world: World
    node: Faults
    store: Faults
    stopping: StopFlag
    janitor: Janitor
    relaying: Relaying
    escrow: Escrow | None
    application: ASGIApp

    async def fetchval(self, query: str, *arguments: object) -> object:
        async with self.ground.database.connection() as connection:
            return await connection.fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: object) -> None:
        async with self.ground.database.connection() as connection:
            await connection.execute(query, *arguments)

    async def sweep(self) -> None:
        """Run one round of the janitor."""
        async with self.ground.database.connection() as connection:
            await self.janitor.sweep(connection)  # type: ignore[arg-type] # a pooled connection does as well here

    async def stored(self, key: str) -> bool:
        """Return whether the pin store holds this key."""
        return await self.ground.pins.holds(key)


@asynccontextmanager
async def staged(
    world: World,
    config: Config,
    seen: list[Seen],
    *,
    relayer: bool = True,
    sweeps: bool = False,
    connection_wait: float = 60,
    make_escrow: Callable[[Dependencies], AbstractAsyncContextManager[Escrow | None]] | None = None,
) -> AsyncIterator[Stage]:
    """Run a coordinator in this process.

    With `relayer=False`, queued ops stay queued. With `sweeps`, the janitor runs. Otherwise tests call `Stage.sweep`.
    `connection_wait` limits the wait for a pooled connection, in seconds. `make_escrow` replaces the configured escrow.
    Tests run the escrow's background work themselves.
    """
    node, store = Faults(), Faults()
    async with (
        httpx.AsyncClient(transport=node, timeout=30) as node_client,
        httpx.AsyncClient(transport=store, timeout=30) as store_client,
        open_database(
            config.database_url.reveal(),
            max_size=8,
            acquire_timeout_s=connection_wait,
            statement_timeout_s=60,
        ) as database,
        AsyncExitStack() as stack,
    ):
        key, secret = config.pin_store_key or Secret(""), config.pin_store_secret or Secret("")
        signer = RequestSigner(key, secret, config.pin_store_region)
        url = bucket_url(config.pin_store_endpoint, config.pin_store_bucket or "")
        pins: PinStore = PinningStore(StoreRequests(http_over(store_client), url, signer, attempts=1))
        if config.pin_store != "filebase":
            pins = await open_pin_store(config, PinnedKeys(database), stack)
        urls = [url.reveal() for url in config.database_replica_urls]
        replicas = await stack.enter_async_context(open_replicas(urls, max_size=4, statement_timeout_s=60))
        nodes = Nodes([Node("node", node_transport(node_client, config.rpc_url))])
        rpc = Rpc(nodes.transport())
        ground = Dependencies(
            config=config,
            domains=Domains.of(config.addresses),
            relayer=await stack.enter_async_context(open_signer(config)),
            database=database,
            replicas=replicas,
            nodes=nodes,
            rpc=rpc,
            rpc_for_callers=rpc,
            pins=pins,
            notices=Notices(),
        )
        async with database.connection() as connection:
            await migrate(connection)
        relaying = app.build_relaying(ground)
        containers = build_containers(ground)
        janitor = app.build_janitor(ground, containers)
        stopping = StopFlag()
        escrow = await stack.enter_async_context((make_escrow or configured_escrow)(ground))
        if escrow is not None:
            await escrow.custody.acquire_first_key()
        application = compose_application(ground, relaying, containers, escrow, stopping)

        async def note(response: httpx.Response) -> None:
            await response.aread()
            path = response.request.url.raw_path.decode().partition("?")[0]
            seen.append(Seen(f"{response.request.method} {path}", response.status_code, _code(response)))

        async with (
            httpx.AsyncClient(
                transport=httpx.ASGITransport(application),
                base_url="http://coordinator",
                event_hooks={"response": [note]},
                timeout=100,
            ) as http,
            anyio.create_task_group() as tasks,
        ):
            if relayer:
                loops = app.background_tasks(ground, relaying, janitor, None)
                if not sweeps:
                    del loops["janitor"]
                app.start_background(tasks, ground.supervisor, loops)
            else:
                listen, index = partial(ground.notices.listen, database), partial(app.run_index_task, ground)
                for part in (
                    relaying.run,
                    index,
                    listen,
                    ground.progress.run,
                    ground.liveness.run,
                    ground.pending_offers.run,
                ):
                    tasks.start_soon(part)
            await until(lambda: http.get("/readyz"), 200)
            yield Stage(http, ground, world, node, store, stopping, janitor, relaying, escrow, application)
            tasks.cancel_scope.cancel()


def configured_escrow(ground: Dependencies) -> AbstractAsyncContextManager[Escrow | None]:
    return open_escrow(ground.config, app.escrow_dependencies(ground), system_clock)


async def until(ask: Callable[[], Awaitable[httpx.Response]], status: int) -> httpx.Response:
    """Repeat the request until the response has this status. The index sends no notices, so polling is the only way."""
    with anyio.fail_after(60):
        while (answer := await ask()).status_code != status:  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.02)
    return answer


def _code(response: httpx.Response) -> str | None:
    try:
        body = response.json()
    except ValueError:
        return None
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        code = body["error"].get("code")
        return str(body["error"].get("type") if code is None else code)
    return None


def configured(world: World, database_url: str, **settings: object) -> Config:
    return config_of(environment(world, database_url, **settings))
