"""Services shared by the runs of one process: an anvil with the market deployed, and a PostgreSQL. Both are reset for
each run."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import attrs
from anyio.from_thread import start_blocking_portal

from coordinatord.run.config import Config, read_config
from coordinatord.run.limits import Limits
from coordinatord.storage.database.migration import migrate
from devnet import accounts
from devnet.accounts import DevWallets
from devnet.anvil import Anvil, running_anvil
from devnet.app import deploy_market
from devnet.market import DevnetMarket
from devnet.ports import pick_free
from devnet.postgres import Postgres, running_postgres
from tests.simulation.coordinator.chain import BASE_FEE, BLOCK_SECONDS, Node
from tests.simulation.coordinator.clocks import START
from tests.simulation.coordinator.postgres import SEARCH_PATH, SETTINGS, STAND_INS
from tests.simulation.coordinator.wire import Address, ControlConnection
from tests.soak.audits import install_audits

_TEMPLATE: Final = "simulated"
_MARKET_AGE_S: Final = 1_000_000  # when a run begins


@attrs.define
class Ground:
    node: Node
    rpc_url: str
    postgres: Postgres
    market: DevnetMarket
    wallets: DevWallets
    portal: Any
    floor: int = 0  # first block of a run
    _snapshot: str = ""
    _runs: int = 0

    def renewed(self) -> str:
        """Reset the chain to its first state. Return it with the URL of a fresh database."""
        if self._snapshot:
            self.node.call("evm_revert", self._snapshot)
        self.node.call("anvil_dropAllTransactions")
        self._snapshot = self.node.call("evm_snapshot")
        self.node.call("anvil_setNextBlockBaseFeePerGas", hex(BASE_FEE))
        self.node.call("evm_setNextBlockTimestamp", int(START) - int(BLOCK_SECONDS))
        # Make a unique block. For a block shared by several histories, anvil sometimes loses the state.
        self.node.call("anvil_setBalance", f"0x{self._runs + 1:040x}", "0x1")
        self.node.call("evm_mine")
        self.floor = self.node.height()
        execute = partial(self.portal.call, self.postgres.execute)
        if self._runs:
            execute(f"drop database run_{self._runs} with (force)")
        self._runs += 1
        name = f"run_{self._runs}"
        execute(f"create database {name} template {_TEMPLATE} strategy file_copy")
        execute(f"alter database {name} set search_path = {SEARCH_PATH}")
        return f"{self.postgres.url(name)}?sslmode=disable"

    def relayers(self) -> list[str]:
        return [wallet.address for wallet in self.wallets.with_role("relayer")]

    def config(self, database_url: str, process: int) -> Config:
        config = read_config(
            {
                "ADDRESSES_JSON": json.dumps(self.market.address_book),
                "DATABASE_URL": database_url,
                "RELAYER_KEY": self.wallets.with_role("relayer")[process].private_key,
                "RPC_URL": self.rpc_url,
                "PIN_STORE_ENDPOINT": "http://store",
                "PIN_STORE_KEY": "key",
                "PIN_STORE_SECRET": "secret",
                "PIN_STORE_BUCKET": "bucket",
                "ESCROW_MODE": "static",
                "OPERATOR_KEY": self.wallets.operator.private_key,
                "BLOCK_TIME_MS": str(int(BLOCK_SECONDS * 1000)),
                "METRICS_PORT": "0",
                "DATABASE_POOL_MAX": "8",
            }
        )
        return attrs.evolve(config, limits=Limits(shutdown_grace_s=5))


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    """`folder` must be empty and unused by other processes."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(_parts(folder)) as parts:
        anvil, postgres, market, wallets = parts
        control = ControlConnection(Address.of(postgres.url("postgres")))
        control.query("set scram_iterations = 1")  # sign-ins are frequent in a run
        control.query(f"alter role devnet password '{postgres.password}'")
        control.close()
        yield Ground(Node(anvil.rpc_url), anvil.rpc_url, postgres, market, wallets, portal)


@asynccontextmanager
async def _parts(folder: Path) -> AsyncIterator[tuple[Anvil, Postgres, DevnetMarket, DevWallets]]:
    for name in ("anvil", "pg", "logs"):
        (folder / name).mkdir()
    async with (
        running_anvil(pick_free(), folder / "anvil", folder / "logs") as anvil,
        running_postgres(pick_free(), folder / "pg", folder / "logs", *SETTINGS) as postgres,
    ):
        wallets = accounts.derive_wallets()
        # Advance one second per block, independent of real time, so the chain's time is the same in every process.
        await anvil.call("evm_setTime", int(START) - _MARKET_AGE_S)
        await anvil.call("anvil_setBlockTimestampInterval", 1)
        market = await deploy_market(anvil, wallets)
        await anvil.call("anvil_removeBlockTimestampInterval")
        await anvil.call("evm_setAutomine", False)
        await postgres.execute(f"create database {_TEMPLATE}")
        await postgres.execute(f"alter database {_TEMPLATE} set search_path = {SEARCH_PATH}")
        connection = await asyncpg.connect(postgres.url(_TEMPLATE))
        await connection.execute(STAND_INS)
        await migrate(connection)
        await connection.close()
        await install_audits(postgres.url(_TEMPLATE))
        yield anvil, postgres, market, wallets
