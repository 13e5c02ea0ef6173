"""Run the devnet's coordinator, configured by environment variables as in production."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from devnet.child import Child, Program, run_program
from devnet.pins import PinStoreService
from devnet.ports import LOOPBACK

_STOP_TIMEOUT_S: Final = 45  # longer than the daemon's shutdown grace period
_BLOCK_TIME_MS: Final = 500


@attrs.frozen
class CoordinatorService:
    base_url: str
    metrics_url: str
    child: Child


@asynccontextmanager
async def running_coordinator(
    *,
    port: int,
    metrics_port: int,
    rpc_url: str,
    database_url: str,
    pins: PinStoreService,
    address_book: dict[str, Any],
    relayer_key: str,
    operator_key: str,
    logs: Path,
) -> AsyncIterator[CoordinatorService]:
    """Run the coordinator, and wait until its index has caught up with the chain."""
    program = Program(
        "coordinator",
        (sys.executable, "-m", "coordinatord", "serve"),
        logs / "coordinatord.log",
        environment={
            "ADDRESSES_JSON": json.dumps(address_book),
            "DATABASE_URL": database_url,
            "RELAYER_KEY": relayer_key,
            "ESCROW_MODE": "static",
            "OPERATOR_KEY": operator_key,
            "WEBHOOKS_KEY": operator_key,
            "WEBHOOKS_PRIVATE": "allow",
            "RPC_URL": rpc_url,
            "PORT": str(port),
            "BIND_HOST": LOOPBACK,  # not reachable from other machines, because the wallets' keys are public
            "METRICS_PORT": str(metrics_port),
            "BLOCK_TIME_MS": str(_BLOCK_TIME_MS),
            "PIN_STORE": pins.kind,
            "PIN_STORE_ENDPOINT": pins.endpoint,
            "PIN_STORE_KEY": pins.key,
            "PIN_STORE_SECRET": pins.secret,
            "PIN_STORE_BUCKET": pins.bucket,
            "PIN_STORE_REGION": pins.region,
            "GATEWAY_URL": pins.gateway,
        },
        stop_seconds=_STOP_TIMEOUT_S,
    )
    base_url = f"http://{LOOPBACK}:{port}"
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False) as client:

        async def ready() -> bool:
            try:
                return (await client.get(f"{base_url}/readyz")).is_success
            except httpx.TransportError:
                return False

        await child.wait_until(ready, seconds=60)
        yield CoordinatorService(base_url, f"http://{LOOPBACK}:{metrics_port}/metrics", child)
