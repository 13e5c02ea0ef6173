"""The soaked market: real services, each behind a fault proxy, and daemons that can be killed."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import asyncpg
import attrs

from common.address_book import AddressBook
from coordinatord.run.config import Config
from devnet import accounts
from devnet.accounts import DevWallet, DevWallets
from devnet.anvil import Anvil, running_anvil
from devnet.app import deploy_market
from devnet.market import DevnetMarket
from devnet.pins import PinStoreService
from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import DATABASE, SUPERUSER, Postgres, running_postgres
from tests.soak.answering import accepts_sql, answers_ok, listens
from tests.soak.programs import Daemon, coordinator_program, provider_program
from tests.support.cid_store import running_cid_store
from tests.support.coordinator import config_of
from tests.support.faults.bomb_server import BombServer, bomb_server
from tests.support.faults.rpc_proxy import RpcProxy, rpc_proxy
from tests.support.faults.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.faults.write_ahead import WriteAhead

BLOCK_SECONDS: Final = 1
CHAIN_BLOCKS: Final = 8_000  # blocks whose transactions the node keeps, more than any check reads
COORDINATORS_ROLE: Final = "coordinators"  # PostgreSQL role that faults lock out; checks use the superuser
COORDINATORS_PASSWORD: Final = "right"
_DURABLE: Final = ("fsync=on", "full_page_writes=on")  # needed for recovery, because the server is killed


@attrs.frozen
class Ground:
    """`rpc`, `store`, `gateway` and `database` are the proxies that daemons use."""

    anvil: Anvil
    postgres: Daemon
    database_url: str  # without the proxy, for checks
    pins: Daemon
    pin_store: PinStoreService
    wallets: DevWallets
    market: DevnetMarket
    market_block: int  # block that completed the deployment and admitted the providers
    rpc: RpcProxy
    second_rpc: RpcProxy  # another proxy of the same node, also used by every second coordinator
    write_ahead: WriteAhead  # checks every transaction that a coordinator sends to either node
    store: TcpProxy
    database: TcpProxy
    coordinators: list[Daemon]
    base_urls: list[str]
    providers: list[Daemon]
    config: Config  # of the coordinators
    clocks: Path  # a file per daemon: see tests.soak.shifted_clock
    bombs: BombServer  # the gateway that buyers and providers ask first
    pin_folder: Path

    @property
    def book(self) -> AddressBook:
        return AddressBook.parse(json.dumps(self.market.address_book).encode())

    @property
    def gateway(self) -> str:
        return f"http://{self.store.host}:{self.store.port}"

    @property
    def daemons(self) -> list[Daemon]:
        return [*self.coordinators, *self.providers]

    @property
    def strangers(self) -> list[DevWallet]:
        """Return registered providers without a daemon."""
        return self.wallets.with_role("provider")[len(self.providers) :]


@asynccontextmanager
async def soaked_market(folder: Path, logs: Path, *, coordinators: int, providers: int) -> AsyncIterator[Ground]:
    """Start everything, and wait until every provider's asks are published or on their way. Stop all of it at the end,
    but keep logs."""
    for name in ("anvil", "clocks", "pins", "postgres"):
        (folder / name).mkdir(parents=True)
    async with (
        AsyncExitStack() as stack,
        running_anvil(pick_free(), folder / "anvil", logs, kept_transaction_blocks=CHAIN_BLOCKS) as anvil,
        running_cid_store(pick_free(), folder / "pins", logs) as pins,
        running_postgres(pick_free(), folder / "postgres", logs, *_DURABLE) as postgres,
        rpc_proxy(anvil.rpc_url, write_ahead := WriteAhead(postgres.url())) as rpc,
        rpc_proxy(anvil.rpc_url, write_ahead) as second_rpc,
        tcp_proxy(LOOPBACK, urlsplit(pins.endpoint).port or 0) as store,
        tcp_proxy(LOOPBACK, postgres.port) as database,
    ):
        bombs = stack.enter_context(bomb_server())
        wallets = accounts.derive_wallets()
        market = await deploy_market(anvil, wallets, announcing=wallets.with_role("provider")[:providers])
        market_block = int(await anvil.call("eth_blockNumber"), 16)
        await anvil.mine_every(BLOCK_SECONDS)
        await _create_role(postgres)
        proxied_url = f"postgresql://{COORDINATORS_ROLE}:{COORDINATORS_PASSWORD}@{LOOPBACK}:{database.port}/{DATABASE}"
        proxied_store = attrs.evolve(pins, endpoint=f"http://{LOOPBACK}:{store.port}")
        heads: list[Daemon] = []
        base_urls: list[str] = []
        for n in range(coordinators):
            port, metrics_port = pick_free(), pick_free()
            base_url = f"http://{LOOPBACK}:{port}"
            program = coordinator_program(
                f"coordinator-{n}",
                port=port,
                metrics_port=metrics_port,
                rpc_urls=[f"{node.url}/coordinator-{n}" for node in (rpc, second_rpc)[: 1 + n % 2]],
                database_url=proxied_url,
                pins=proxied_store,
                market=market,
                relayer_key=wallets.with_role("relayer")[n % 2].private_key,
                logs=logs,
                clock=folder / "clocks" / f"coordinator-{n}",
            )
            heads.append(Daemon(program, answers_ok(f"{base_url}/readyz")))
            base_urls.append(base_url)
        hands: list[Daemon] = []
        for n, wallet in enumerate(wallets.with_role("provider")[:providers]):
            metrics_port = pick_free()
            program = provider_program(
                f"provider-{n}",
                wallet,
                folder=folder / f"provider-{n}",
                coordinator=base_urls[n % len(base_urls)],
                gateways=[bombs.url, f"http://{LOOPBACK}:{store.port}"],
                metrics_port=metrics_port,
                logs=logs,
                clock=folder / "clocks" / f"provider-{n}",
            )
            hands.append(Daemon(program, answers_ok(f"http://{LOOPBACK}:{metrics_port}/healthz")))
        ground = Ground(
            anvil=anvil,
            postgres=Daemon(postgres.child.program, accepts_sql(postgres), postgres.child),
            database_url=postgres.url(),
            pins=Daemon(pins.children[0].program, listens(f"{pins.gateway}/ipfs/"), pins.children[0]),
            pin_store=pins,
            wallets=wallets,
            market=market,
            market_block=market_block,
            rpc=rpc,
            second_rpc=second_rpc,
            write_ahead=write_ahead,
            store=store,
            database=database,
            coordinators=heads,
            base_urls=base_urls,
            providers=hands,
            config=config_of(heads[0].program.environment),
            clocks=folder / "clocks",
            bombs=bombs,
            pin_folder=folder / "pins",
        )
        try:
            for group in (heads, hands):
                for daemon in group:
                    await daemon.start()
                for daemon in group:
                    await daemon.until_ready()
            yield ground
        finally:
            with anyio.CancelScope(shield=True):
                await write_ahead.aclose()
                for daemon in (*hands, *heads, ground.pins, ground.postgres):
                    await daemon.kill()


async def _create_role(postgres: Postgres) -> None:
    """Create the coordinators' role, which owns the database. Triggers of the soak run as this role, so it may use the
    soak's tables. A read-only primary does not stop the soak's own writes."""
    connection = await asyncpg.connect(postgres.url())
    try:
        for statement in (
            f"create role {COORDINATORS_ROLE} login password '{COORDINATORS_PASSWORD}'",
            f"alter database {DATABASE} owner to {COORDINATORS_ROLE}",
            f"alter default privileges grant all on tables to {COORDINATORS_ROLE}",
            f"alter role {SUPERUSER} set default_transaction_read_only = off",
        ):
            await connection.execute(statement)
    finally:
        await connection.close()
