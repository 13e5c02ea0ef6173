"""Coordinator and provider as services of the local world: the real daemons, set up as an operator would."""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from devnet.accounts import DevWallet
from devnet.catalogue import MODELS, SLA_SECONDS, CatalogueModel
from devnet.child import Child, Program, running
from devnet.pins import PinStoreService
from devnet.ports import LOOPBACK
from devnet.settings import SLOTS

_STOP_SECONDS: Final = 45  # above the daemon's own grace
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
    """Up when it is ready: its index has caught up with the chain."""
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
            "BIND_HOST": LOOPBACK,  # its wallets' keys are public
            "METRICS_PORT": str(metrics_port),
            "BLOCK_TIME_MS": str(_BLOCK_TIME_MS),
            "PIN_STORE_ENDPOINT": pins.endpoint,
            "PIN_STORE_KEY": pins.key,
            "PIN_STORE_SECRET": pins.secret,
            "PIN_STORE_BUCKET": pins.bucket,
            "PIN_STORE_REGION": pins.region,
            "GATEWAY_URL": pins.gateway,
        },
        stop_seconds=_STOP_SECONDS,
    )
    base_url = f"http://{LOOPBACK}:{port}"
    async with running(program) as child, httpx.AsyncClient(trust_env=False) as client:

        async def ready() -> bool:
            try:
                return (await client.get(f"{base_url}/readyz")).is_success
            except httpx.TransportError:
                return False

        await child.wait_until(ready, seconds=60)
        yield CoordinatorService(base_url, f"http://{LOOPBACK}:{metrics_port}/metrics", child)


# The provider, with its demo backend.

_PROVIDER_STOP_SECONDS: Final = 30  # above the daemon's own grace
_GRACE_SECONDS: Final = 10
_SERVES: Final = {
    "/v1/responses": "text",
    "/v1/embeddings": "embeddings",
    "/v1/images/generations": "image",
}
# Base units of the payment token per million units: low enough for any order of a demo to clear them.
_RATE_IN: Final = 100_000
_RATE_OUT: Final = 200_000
_WALLET_VARIABLE: Final = "SVCD_WALLET_KEY"
_BOX_VARIABLE: Final = "SVCD_BOX_KEY"


@attrs.frozen
class ProviderService:
    metrics_url: str
    config: Path
    child: Child


@asynccontextmanager
async def running_provider(
    *,
    account: DevWallet,
    coordinator_url: str,
    rpc_url: str,
    gateway: str,
    address_book: dict[str, Any],
    metrics_port: int,
    directory: Path,
    logs: Path,
    slots: int = SLOTS,
    ahead: bool = False,
) -> AsyncIterator[ProviderService]:
    """Up when its asks are on the book and its polls are answered: an order finds it as a candidate."""
    config = write_config(
        directory,
        coordinator_url=coordinator_url,
        rpc_url=rpc_url,
        gateway=gateway,
        address_book=address_book,
        metrics_port=metrics_port,
        slots=slots,
        ahead=ahead,
    )
    program = Program(
        "provider",
        (sys.executable, "-m", "svcd", "run", "--config", str(config)),
        logs / "svcd.log",
        environment=key_variables(account),
        stop_seconds=_PROVIDER_STOP_SECONDS,
    )
    base = f"http://{LOOPBACK}:{metrics_port}"
    async with running(program) as child, httpx.AsyncClient(trust_env=False) as client:

        async def ready() -> bool:
            try:
                text = (await client.get(f"{base}/metrics")).text
            except httpx.TransportError:
                return False
            asks = len(MODELS) * len(SLA_SECONDS)
            return f"svcd_asks_published {asks:.1f}\n" in text and all_polled(text)

        await child.wait_until(ready, seconds=60)
        yield ProviderService(f"{base}/metrics", config, child)


def write_config(
    directory: Path,
    *,
    coordinator_url: str,
    gateway: str,
    address_book: dict[str, Any],
    metrics_port: int,
    rpc_url: str | None = None,
    slots: int = SLOTS,
    ahead: bool = False,
) -> Path:
    """The daemon's configuration; its keys come from the environment (`key_variables`). With `rpc_url` it reads claims
    from the chain before it works."""
    addresses, path = directory / "addresses.json", directory / "svcd.toml"
    addresses.write_text(json.dumps(address_book), encoding="utf-8")
    lines = [
        f"state_directory = {json.dumps(str(directory / 'state'))}",
        "[coordinator]",
        f"url = {json.dumps(coordinator_url)}",
        f"addresses_file = {json.dumps(str(addresses))}",
        *([f"rpc_url = {json.dumps(rpc_url)}"] if rpc_url is not None else []),
        "[gateway]",
        f"urls = [{json.dumps(gateway)}]",
        "[keys]",
        f'wallet_env = "{_WALLET_VARIABLE}"',
        f'box_env = "{_BOX_VARIABLE}"',
        "[metrics]",
        f"port = {metrics_port}",
        "[limits]",
        f"shutdown_grace_seconds = {_GRACE_SECONDS}",
        *(line for model in MODELS for line in _model(model, slots, ahead=ahead)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def key_variables(account: DevWallet) -> dict[str, str]:
    return {_WALLET_VARIABLE: account.private_key, _BOX_VARIABLE: "0x" + account.box_secret.hex()}


def _model(model: CatalogueModel, slots: int, *, ahead: bool) -> list[str]:
    lines = [
        "[[model]]",
        f"name = {json.dumps(model.name)}",
        f'serves = ["{_SERVES[model.endpoint]}"]',
        f"slots = {slots}",
        "margin_seconds = 10",
        "poll_seconds = 0.5",
    ]
    for seconds in SLA_SECONDS:
        lines += ["[[model.ask]]", f"sla_seconds = {seconds}", f'rate_in = "{_RATE_IN}"', f'rate_out = "{_RATE_OUT}"']
    if ahead:
        lines += ["[model.ahead]", 'most_amount = "1000000"', 'most_in_flight = "100000000"', "settled_jobs = 5"]
    return [*lines, "[model.backend]", 'kind = "echo"']


def all_polled(metrics: str) -> bool:
    """Asked for work for every model, with room for it: how much, the network's grant decides."""
    return all(
        re.search(rf'^svcd_model_free{{model="{re.escape(model.name)}"}} 0*[1-9]', metrics, re.MULTILINE)
        for model in MODELS
    )
