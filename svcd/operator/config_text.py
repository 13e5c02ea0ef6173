"""Build the text of the configuration that `svcd init` writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from svcd.operator.discovery import ModelServer

SYSTEM_FOLDER: Final = Path("/etc/svcd")
_SYSTEM_STATE_FOLDER: Final = Path("/var/lib/svcd")

Rates = dict[tuple[str, int], tuple[int, int]]
"""rate_in and rate_out of each (model, window in seconds)."""


@attrs.frozen(slots=True, kw_only=True)
class SetupOptions:
    """Flags of `svcd init`. The command prompts for missing values."""

    config: Path
    coordinator: str | None = None
    servers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # MARKET, or MARKET=SERVED
    price_percent: int | None = None
    rate_in: int | None = None
    rate_out: int | None = None
    wallet: str | None = None  # new, keystore, or the path of a key
    api: str | None = None
    slots: int | None = None  # of each model
    gateway: str | None = None
    addresses: Path | None = None
    rpc_url: str | None = None
    state_directory: Path | None = None
    metrics_port: int | None = None

    @property
    def folder(self) -> Path:
        return self.config.absolute().parent

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"


@attrs.frozen(slots=True)
class OfferedModel:
    """Model to offer, with its server, the model's name on that server, and its slots."""

    name: str
    model_id: int
    server: ModelServer
    served_name: str
    slots: int = 1


def configuration_text(
    options: SetupOptions,
    *,
    coordinator: str,
    gateway: str,
    addresses: Path,
    keys: Sequence[str],
    offered: Sequence[OfferedModel],
    rates: Rates,
    windows: Sequence[int],
) -> str:
    is_system = options.folder == SYSTEM_FOLDER
    state = options.state_directory or (_SYSTEM_STATE_FOLDER if is_system else options.folder / "state")
    lines = [
        "# Written by `svcd init`. config/svcd.toml of the release lists every key with its default.",
        f"state_directory = {toml_string(state.absolute())}",
        "",
        "[coordinator]",
        f"url = {toml_string(coordinator)}",
        f"addresses_file = {toml_string(addresses)}",
        *([f"rpc_url = {toml_string(options.rpc_url)}"] if options.rpc_url else []),
        "",
        "[gateway]",
        f"urls = [{toml_string(gateway)}]",
        "",
        f"# Files in {options.credentials}, which the systemd unit passes to svcd as credentials.",
        "[keys]",
        *keys,
    ]
    if options.metrics_port is not None:
        lines += ["", "[metrics]", f"port = {options.metrics_port}"]
    for model in offered:
        lines += ["", *_model_lines(options, model)]
        for window in windows:
            rate_in, rate_out = rates[model.name, window]
            lines += ["", "[[model.ask]]", f"sla_seconds = {window}"]
            lines += [f'rate_in = "{rate_in}"', f'rate_out = "{rate_out}"']
        lines += ["", *_backend_lines(options, model)]
    return "\n".join(lines) + "\n"


def _model_lines(options: SetupOptions, model: OfferedModel) -> list[str]:
    serves = {"embeddings": "embeddings", "images": "image"}.get(_choose_api(options, model), "text")
    return ["[[model]]", f"name = {toml_string(model.name)}", f'serves = ["{serves}"]', f"slots = {model.slots}"]


def _backend_lines(options: SetupOptions, model: OfferedModel) -> list[str]:
    lines = [
        "[model.backend]",
        'kind = "openai"',
        f'api = "{_choose_api(options, model)}"',
        f"base_url = {toml_string(model.server.url)}",
        f"models = {{ {toml_string(model.name)} = {toml_string(model.served_name)} }}",
    ]
    if model.server.metrics_url is not None:
        lines += ["", "[model.load]", 'kind = "prometheus"', f"url = {toml_string(model.server.metrics_url)}"]
    return lines


def _choose_api(options: SetupOptions, model: OfferedModel) -> str:
    if options.api is not None:
        return options.api
    return "embeddings" if "embed" in f"{model.name} {model.served_name}".lower() else "chat"


def toml_string(value: object) -> str:
    """Return the value as a TOML string."""
    return json.dumps(str(value), ensure_ascii=False)
