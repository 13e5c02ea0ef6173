"""Run the devnet's provider: svcd with a configuration file, as in production."""

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
from devnet.catalogue import MODELS, SLA_WINDOWS_S, CatalogueModel
from devnet.child import Child, Program, run_program
from devnet.ports import LOOPBACK
from devnet.settings import DEFAULT_SLOTS

_PROVIDER_STOP_TIMEOUT_S: Final = 30  # longer than the daemon's shutdown grace period
_SHUTDOWN_GRACE_S: Final = 10
_SERVES_BY_ENDPOINT: Final = {
    "/v1/responses": "text",
    "/v1/embeddings": "embeddings",
    "/v1/images/generations": "image",
}
_MODEL_SERVER_APIS: Final = {"/v1/responses": "responses", "/v1/embeddings": "embeddings"}
# Base units of the payment token per million model units. The demo's orders pay at least these rates.
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
    slots: int = DEFAULT_SLOTS,
    ahead: bool = False,
    model_url: str | None = None,
) -> AsyncIterator[ProviderService]:
    """Run the provider, and wait until its asks are published and it polls for every model."""
    config = write_config(
        directory,
        coordinator_url=coordinator_url,
        rpc_url=rpc_url,
        gateway=gateway,
        address_book=address_book,
        metrics_port=metrics_port,
        slots=slots,
        ahead=ahead,
        model_url=model_url,
    )
    program = Program(
        "provider",
        (sys.executable, "-m", "svcd", "run", "--config", str(config)),
        logs / "svcd.log",
        environment=key_variables(account),
        stop_seconds=_PROVIDER_STOP_TIMEOUT_S,
    )
    base = f"http://{LOOPBACK}:{metrics_port}"
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False) as client:

        async def ready() -> bool:
            try:
                text = (await client.get(f"{base}/metrics")).text
            except httpx.TransportError:
                return False
            asks = len(MODELS) * len(SLA_WINDOWS_S)
            return f"svcd_asks_published {asks:.1f}\n" in text and polls_for_all_models(text)

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
    slots: int = DEFAULT_SLOTS,
    ahead: bool = False,
    model_url: str | None = None,
) -> Path:
    """Write the daemon's configuration. The daemon reads its keys from the environment (`key_variables`).

    With `rpc_url`, the daemon checks claims on the chain before it runs a job. With `model_url`, a model server answers
    text and embedding jobs. The `echo` backend answers all other jobs.
    """
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
        f'wallet = "${_WALLET_VARIABLE}"',
        f'box = "${_BOX_VARIABLE}"',
        "[metrics]",
        f"port = {metrics_port}",
        "[limits]",
        f"shutdown_grace_seconds = {_SHUTDOWN_GRACE_S}",
        *(line for model in MODELS for line in _model_lines(model, slots, model_url, ahead=ahead)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def key_variables(account: DevWallet) -> dict[str, str]:
    return {_WALLET_VARIABLE: account.private_key, _BOX_VARIABLE: "0x" + account.box_secret.hex()}


def _model_lines(model: CatalogueModel, slots: int, model_url: str | None, *, ahead: bool) -> list[str]:
    lines = [
        "[[model]]",
        f"name = {json.dumps(model.name)}",
        f'serves = ["{_SERVES_BY_ENDPOINT[model.endpoint]}"]',
        f"slots = {slots}",
        "margin_seconds = 10",
    ]
    for seconds in SLA_WINDOWS_S:
        lines += ["[[model.ask]]", f"sla_seconds = {seconds}", f'rate_in = "{_RATE_IN}"', f'rate_out = "{_RATE_OUT}"']
    if ahead:
        lines += ["[model.ahead]", 'max_amount = "1000000"', 'max_in_flight = "100000000"']
    lines.append("[model.backend]")
    api = _MODEL_SERVER_APIS.get(model.endpoint)
    if model_url is None or api is None:
        return [*lines, 'kind = "echo"']
    return [*lines, 'kind = "openai"', f'api = "{api}"', f"base_url = {json.dumps(model_url)}", "check_name = false"]


def polls_for_all_models(metrics: str) -> bool:
    """Return True if the last poll for each model requested at least one job."""
    return all(
        re.search(rf'^svcd_model_free{{model="{re.escape(model.name)}"}} 0*[1-9]', metrics, re.MULTILINE)
        for model in MODELS
    )
