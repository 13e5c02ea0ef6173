"""The daemons of the soaked market, configured like an operator would, which can be killed and restarted."""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import anyio
import attrs

from devnet import child
from devnet.accounts import DevWallet
from devnet.catalogue import MODELS
from devnet.child import Child, Program
from devnet.market import DevnetMarket
from devnet.pins import PinStoreService
from tests.soak.shifted_clock import write_shift
from tests.support.coordinator import VARIABLE

_READY_SECONDS: Final = 90.0  # a coordinator waits up to 60 for its node


@attrs.define(eq=False)
class Daemon:
    """`deaths` counts unexpected exits. Each is a defect."""

    program: Program
    ready: Callable[[], Awaitable[bool]]
    process: Child | None = None
    deaths: list[int] = attrs.field(factory=list)

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int | None:
        return None if self.process is None or self.process.process.returncode is not None else self.process.pid

    async def start(self) -> None:
        self.process = await child.start_program(self.program)

    async def until_ready(self) -> None:
        assert self.process is not None
        await self.process.wait_until(self.ready, seconds=_READY_SECONDS)

    async def kill(self) -> None:
        """Kill the daemon like a power cut, without any cleanup."""
        if (process := self._taken()) is not None:
            await process.kill()

    async def stop(self) -> int:
        """Stop it like an operator. Return the exit status."""
        if (process := self._taken()) is None:
            return 0
        await process.stop()
        return int(process.process.returncode or 0)

    def _taken(self) -> Child | None:
        """Return the process, and stop watching it."""
        process, self.process = self.process, None
        return process

    async def watch(self) -> None:
        """Record every unexpected exit, and restart the daemon like systemd."""
        while True:
            process = self.process
            if process is not None and process.process.returncode is not None:
                self.deaths.append(process.process.returncode)
                await self.start()
            await anyio.sleep(0.2)


# Short enough that windows end during a run, long enough for every fault.
SLA_SECONDS: Final = 60
BATCH_SLA_SECONDS: Final = 3600
RATE_IN, RATE_OUT = 1_000_000, 2_000_000
PIXEL_RATE: Final = 1_000  # for pictures of a million pixels
ORIGIN: Final = "https://shop.example"  # pages of this origin may read the coordinators' responses
_STOP_SECONDS: Final = 60
# One wallet does in minutes the work of days in a real market. Settled jobs earn larger budgets, and the crowd's
# strangers, who settle nothing, hit the limits.
_BUDGETS: Final = {"STORAGE_BYTES": "0", "STORAGE_NEWCOMERS_BYTES": str(2 << 30)}
# The shortest allowed values, so that a run of several days shows that old data is deleted.
_RETENTION: Final = {"FILE_RETENTION_SECONDS": "259200", "RELAY_RETENTION_SECONDS": "259200"}
JOURNAL_BLOCKS: Final = 64  # small, so that a short run has deeper reorgs
LIMITS: Final[dict[str, object]] = {
    "gas": {
        "posts_daily_gas": 20_000_000,
        "work_daily_gas": 0,
        "upkeep_daily_gas": 0,
        "unlisted_upkeep_daily_gas": 2_000_000,
        "newcomers_daily_gas": 2_000_000_000,
        "daily_gas_per_settled_job": 5_000_000,
        "hourly_percent": 100,
    },
    "journal_blocks": JOURNAL_BLOCKS,
    "unsettled_retention_s": 3600,
    "failed_batch_retention_s": 3600,
    "requests_burst": 100_000,
    "connections_per_caller": 100_000,
    "uploads_per_caller": 1000,
}
_OPERATOR_KEY: Final = "0x" + "5e" * 32
_WEBHOOKS_KEY: Final = "3c" * 32


def coordinator_program(
    name: str,
    *,
    port: int,
    metrics_port: int,
    rpc_urls: Sequence[str],
    database_url: str,
    pins: PinStoreService,
    market: DevnetMarket,
    relayer_key: str,
    logs: Path,
    clock: Path,
) -> Program:
    environment = {
        **_BUDGETS,
        **_RETENTION,
        "ADDRESSES_JSON": json.dumps(market.address_book),
        "DATABASE_URL": database_url,
        "RELAYER_KEY": relayer_key,
        "RPC_URL": rpc_urls[0],
        **({"RPC_URLS": ",".join(rpc_urls[1:])} if rpc_urls[1:] else {}),
        "WEBHOOKS_KEY": _WEBHOOKS_KEY,
        "WEBHOOKS_PRIVATE": "allow",
        "PORT": str(port),
        "METRICS_PORT": str(metrics_port),
        "ESCROW_MODE": "static",
        "OPERATOR_KEY": _OPERATOR_KEY,
        "CORS_ORIGINS": ORIGIN,
        "BLOCK_TIME_MS": "500",
        "REQUESTS_PER_SECOND": "100000",
        VARIABLE: json.dumps(LIMITS),
        "PIN_STORE_ENDPOINT": pins.endpoint,
        "PIN_STORE_KEY": pins.key,
        "PIN_STORE_SECRET": pins.secret,
        "PIN_STORE_BUCKET": pins.bucket,
        "PIN_STORE_REGION": pins.region,
    }
    command = _under_clock(clock, "tests.support.coordinator", "serve")
    return Program(name, command, logs / f"{name}.log", environment=environment, stop_seconds=_STOP_SECONDS)


def provider_program(
    name: str,
    wallet: DevWallet,
    *,
    folder: Path,
    coordinator: str,
    gateways: Sequence[str],
    metrics_port: int,
    logs: Path,
    clock: Path,
) -> Program:
    folder.mkdir()
    for file, key in (("wallet.key", wallet.private_key), ("box.key", "0x" + wallet.box_secret.hex())):
        path = folder / file
        path.touch(mode=0o600)
        path.write_text(key + "\n", encoding="ascii")
    (folder / "svcd.toml").write_text(_configuration(folder, coordinator, gateways, metrics_port), encoding="utf-8")
    command = _under_clock(clock, "svcd", "run", "--config", str(folder / "svcd.toml"))
    environment = {"PATH": os.environ["PATH"]}
    return Program(name, command, logs / f"{name}.log", environment=environment, stop_seconds=_STOP_SECONDS)


def _under_clock(clock: Path, *command: str) -> tuple[str, ...]:
    write_shift(clock, 0.0)
    return (sys.executable, "-m", "tests.soak.shifted_clock", str(clock), *command)


def _configuration(folder: Path, coordinator: str, gateways: Sequence[str], metrics_port: int) -> str:
    text, embeddings, image = (model.name for model in MODELS)
    models = "".join(
        f"""
[[model]]
name = "{name}"
serves = ["{serves}"]
slots = 8
margin_seconds = 5
[model.backend]
kind = "echo"
delay_seconds = 0.2
{_asks(*rates)}"""
        for name, serves, rates in (
            (text, "text", (RATE_IN, RATE_OUT)),
            (embeddings, "embeddings", (RATE_IN, RATE_OUT)),
            (image, "image", (PIXEL_RATE, PIXEL_RATE)),
        )
    )
    return f"""
state_directory = "{folder / "state"}"
[coordinator]
url = "{coordinator}"
[gateway]
urls = {json.dumps(list(gateways))}
[keys]
wallet = "{folder / "wallet.key"}"
box = "{folder / "box.key"}"
[metrics]
port = {metrics_port}
[limits]
shutdown_grace_seconds = 20
{models}"""


def _asks(rate_in: int, rate_out: int) -> str:
    return "".join(
        f"""
[[model.ask]]
sla_seconds = {sla}
rate_in = "{rate_in}"
rate_out = "{rate_out}"
"""
        for sla in (SLA_SECONDS, BATCH_SLA_SECONDS)
    )
