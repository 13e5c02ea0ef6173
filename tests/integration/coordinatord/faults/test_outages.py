"""Outages while jobs are posted, claimed and settled: of the database, of its login, of the name server, of svcd's disk
and of file descriptors."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

import anyio
import attrs
import pytest

from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import DATABASE, SUPERUSER, Postgres, running_postgres
from devnet.world import World
from tests.integration.coordinatord.failover.servers import frozen
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.faults.trading import RECOVERY_S, TradingMarket, trading, until
from tests.support.faults.descriptors import idle_connections
from tests.support.faults.full_disk import full_disk
from tests.support.faults.name_server import NameServer
from tests.support.faults.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = pytest.mark.timeout(180)

StartTrading = Callable[..., AbstractAsyncContextManager[TradingMarket]]

_PASSWORD: Final = "right"
_ORDERS_OF_A_MINUTE: Final = 400
_ADDRESS_CACHE_S: Final = 10.0  # time for which the coordinator caches a node's address


@pytest.fixture
async def account(postgres: Postgres) -> AsyncIterator[str]:
    """A database user for the coordinator alone, whose access a test can revoke."""
    name = f"coordinator_{secrets.token_hex(6)}"
    await postgres.execute(f"create role {name} superuser login password '{_PASSWORD}'")
    yield name
    await postgres.execute(f"drop role {name}")


@pytest.fixture
def start(setup: MarketSetup, tmp_path: Path) -> StartTrading:
    """Start both daemons on the database."""
    return partial(trading, setup, tmp_path)


@pytest.fixture
async def trade(start: StartTrading, database_url: str, account: str) -> AsyncIterator[TradingMarket]:
    """Both daemons. The coordinator connects to the database as `account`."""
    async with start(coordinators_database_url=_as_account(database_url, account)) as market:
        yield market


def _as_account(database_url: str, account: str) -> str:
    return re.sub(r"//[^@]*@", f"//{account}:{_PASSWORD}@", database_url)


async def end_sessions(postgres: Postgres, account: str) -> None:
    """End the account's sessions except the current one."""
    sessions = f"pg_stat_activity where usename = '{account}' and pid <> pg_backend_pid()"
    await postgres.execute(f"select pg_terminate_backend(pid) from {sessions}")  # noqa: S608 - a name of ours


@asynccontextmanager
async def altered_role(postgres: Postgres, account: str, fault: str, cure: str) -> AsyncIterator[None]:
    """Lock the account out: its sessions end and new ones are refused."""
    await postgres.execute(f"alter role {account} {fault}")
    await end_sessions(postgres, account)
    try:
        yield
    finally:
        await postgres.execute(f"alter role {account} {cure}")


@asynccontextmanager
async def read_only(postgres: Postgres) -> AsyncIterator[None]:
    await postgres.execute("alter system set default_transaction_read_only = on")
    await postgres.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        await postgres.execute("alter system reset default_transaction_read_only")
        await postgres.execute("select pg_reload_conf()")


@pytest.mark.long
async def test_read_only_database_is_survived(trade: TradingMarket, postgres: Postgres) -> None:
    await trade.survive(read_only(postgres), code="database_read_only")


@pytest.mark.long
async def test_changed_database_password_is_survived(trade: TradingMarket, postgres: Postgres, account: str) -> None:
    changed = altered_role(postgres, account, "password 'another'", f"password '{_PASSWORD}'")
    await trade.survive(changed, code="database_unavailable")


@pytest.mark.long
async def test_refused_database_login_is_survived(trade: TradingMarket, postgres: Postgres, account: str) -> None:
    await trade.survive(altered_role(postgres, account, "nologin", "login"), code="database_unavailable")


@asynccontextmanager
async def hanging(postgres: Postgres) -> AsyncIterator[None]:
    with frozen(postgres):
        yield


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_database_that_hangs_for_a_minute_is_survived(trade: TradingMarket, postgres: Postgres) -> None:
    await trade.survive(hanging(postgres), code="database_unavailable", seconds=60)


@asynccontextmanager
async def sessions_ended_each_second(postgres: Postgres, account: str) -> AsyncIterator[None]:
    async def end_them() -> None:
        while True:
            await end_sessions(postgres, account)
            await anyio.sleep(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_them)
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_sessions_that_are_ended_for_a_minute_are_survived(
    start: StartTrading, database_url: str, postgres: Postgres, account: str
) -> None:
    """Jobs are posted all the time."""
    url = _as_account(database_url, account)
    async with start(coordinators_database_url=url, orders=_ORDERS_OF_A_MINUTE) as market:
        await market.survive(sessions_ended_each_second(postgres, account), code=None, seconds=60)


@asynccontextmanager
async def without_socket(postgres: Postgres, socket: anyio.Path) -> AsyncIterator[None]:
    """Move the server's socket file away and end the sessions that came through it."""
    away = await socket.rename(socket.with_suffix(".away"))
    await end_sessions(postgres, SUPERUSER)
    try:
        yield
    finally:
        await away.rename(socket)


@pytest.mark.long
async def test_removed_database_socket_is_survived(setup: MarketSetup, tmp_path: Path) -> None:
    port = pick_free()
    with TemporaryDirectory() as data_directory, TemporaryDirectory() as sockets:
        folder = anyio.Path(sockets)
        await folder.chmod(0o777)  # the server may run as another user
        async with running_postgres(
            port, Path(data_directory), tmp_path, f"unix_socket_directories={sockets}"
        ) as postgres:
            # The coordinator connects through the socket. The test connects by TCP, which works during the outage.
            socket_url = f"postgresql://{SUPERUSER}:{postgres.password}@/{DATABASE}?host={sockets}&port={port}"
            tcp_deployment = attrs.evolve(setup, database_url=postgres.url())
            async with trading(tcp_deployment, tmp_path, coordinators_database_url=socket_url) as market:
                outage = without_socket(postgres, folder / f".s.PGSQL.{port}")
                await market.survive(outage, code="database_unavailable")


@asynccontextmanager
async def unresolved(names: NameServer, postgres: Postgres, account: str, *proxies: TcpProxy) -> AsyncIterator[None]:
    """Take the name server down and cut connections, so that each must reconnect."""
    with names.down():
        await end_sessions(postgres, account)
        for proxy in proxies:
            proxy.cut_all()
        yield


@pytest.mark.long
async def test_name_server_that_is_down_is_survived(
    start: StartTrading, world: World, database_url: str, tmp_path: Path, account: str
) -> None:
    """Database, node and coordinator are reached by names."""
    postgres, names, port = world.postgres, NameServer.built_in(tmp_path), pick_free()
    own_url = re.sub(r"//[^/]*/", f"//{account}:{_PASSWORD}@database.test:{postgres.port}/", database_url)
    nodes_port = urlsplit(world.anvil.rpc_url).port
    async with tcp_proxy(LOOPBACK, nodes_port or 0) as node, tcp_proxy(LOOPBACK, port) as coordinator:
        daemons = start(
            coordinators_database_url=own_url,
            coordinator_settings={"RPC_URL": f"http://node.test:{node.port}"},
            port=port,
            providers_url=f"http://coordinator.test:{coordinator.port}",
            process_environment=names.environment,
        )
        async with daemons as market:
            outage, seconds = unresolved(names, postgres, account, node, coordinator), _ADDRESS_CACHE_S + 2
            await market.survive(outage, code="database_unavailable", reason="chain_unreachable", seconds=seconds)


_DESCRIPTORS: Final = 1024
_CONNECTIONS: Final = 1200


@pytest.fixture
async def limited_trade(setup: MarketSetup, tmp_path: Path) -> AsyncIterator[TradingMarket]:
    """Both daemons, with few file descriptors each."""
    async with trading(setup, tmp_path, descriptors=_DESCRIPTORS) as market:
        yield market


@asynccontextmanager
async def flooded(port: int) -> AsyncIterator[None]:
    with idle_connections(port, _CONNECTIONS):
        yield


@pytest.mark.long
async def test_idle_connections_to_coordinator_give_way(limited_trade: TradingMarket) -> None:
    """It serves so few connections that it always has free descriptors."""

    @asynccontextmanager
    async def flooded_and_ready() -> AsyncIterator[None]:
        async with flooded(limited_trade.coordinator.port):
            await anyio.sleep(1)
            posted = len(limited_trade.load.posted)
            with anyio.fail_after(RECOVERY_S):
                await until(limited_trade.is_ready)
                await limited_trade.load.until_posted(posted + 1)
            yield

    await limited_trade.survive(flooded_and_ready(), code=None)
    lines = [
        json.loads(line) for line in limited_trade.coordinators_log.read_text().splitlines() if line.startswith("{")
    ]
    (serving,) = [line for line in lines if line["event"] == "serving"]
    assert serving["connections"] < _DESCRIPTORS


@pytest.mark.long
async def test_idle_connections_to_coordinators_metrics_are_survived(limited_trade: TradingMarket) -> None:
    await limited_trade.survive(flooded(limited_trade.coordinator.metrics_port), code=None)


@pytest.mark.long
async def test_idle_connections_to_providers_metrics_are_survived(limited_trade: TradingMarket) -> None:
    await limited_trade.survive(flooded(limited_trade.providers_port), code=None)
    assert '"task failed"' not in limited_trade.providers_log.read_text()


@pytest.mark.long
async def test_full_disk_is_survived_and_reported(setup: MarketSetup, tmp_path: Path) -> None:
    """The log cannot be written either."""
    async with trading(setup, tmp_path) as market:

        @asynccontextmanager
        async def full() -> AsyncIterator[None]:
            with full_disk(market.provider.pid):
                with anyio.fail_after(10):
                    await until(lambda: names_the_journal(market))
                yield

        await market.survive(full(), code=None)
        with anyio.fail_after(RECOVERY_S):
            await until(market.provider_is_healthy)


async def names_the_journal(market: TradingMarket) -> bool:
    answer = await market.http.get(market.providers_health_url)
    return answer.status_code == 503 and "journal" in answer.headers["x-svcd-reason"]
