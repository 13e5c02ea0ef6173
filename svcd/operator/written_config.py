"""Text of the configuration that `svcd init` writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from svcd.operator.discovery import ModelServer

SYSTEM_FOLDER: Final = Path("/etc/svcd")
_SYSTEM_STATE: Final = Path("/var/lib/svcd")

Rates = dict[tuple[str, int], tuple[int, int]]
"""rate_in and rate_out by model and window."""


@attrs.frozen(slots=True, kw_only=True)
class SetupOptions:
    """Values of the flags. None means that `svcd init` asks."""

    config: Path
    coordinator: str | None = None
    servers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # market's name, or market's=server's
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
    """Model to offer, with its server, its name there and its slots."""

    name: str
    model_id: int
    server: ModelServer
    served: str
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
    at_home = options.folder == SYSTEM_FOLDER
    state = options.state_directory or (_SYSTEM_STATE if at_home else options.folder / "state")
    lines = [
        "# Written by `svcd init`. Every key there is, with its default: config/svcd.toml of the release.",
        f"state_directory = {quoted(state.absolute())}",
        "",
        "[coordinator]",
        f"url = {quoted(coordinator)}",
        f"addresses_file = {quoted(addresses)}",
        *([f"rpc_url = {quoted(options.rpc_url)}"] if options.rpc_url else []),
        "",
        "[gateway]",
        f"urls = [{quoted(gateway)}]",
        "",
        f"# Files in {options.credentials}, which the unit hands over as credentials.",
        "[keys]",
        *keys,
    ]
    if options.metrics_port is not None:
        lines += ["", "[metrics]", f"port = {options.metrics_port}"]
    for model in offered:
        lines += ["", *_model(options, model)]
        for window in windows:
            rate_in, rate_out = rates[model.name, window]
            lines += ["", "[[model.ask]]", f"sla_seconds = {window}"]
            lines += [f'rate_in = "{rate_in}"', f'rate_out = "{rate_out}"']
        lines += ["", *_backend(options, model)]
    return "\n".join(lines) + "\n"


def _model(options: SetupOptions, model: OfferedModel) -> list[str]:
    serves = {"embeddings": "embeddings", "images": "image"}.get(_api(options, model), "text")
    return ["[[model]]", f"name = {quoted(model.name)}", f'serves = ["{serves}"]', f"slots = {model.slots}"]


def _backend(options: SetupOptions, model: OfferedModel) -> list[str]:
    lines = [
        "[model.backend]",
        'kind = "openai"',
        f'api = "{_api(options, model)}"',
        f"base_url = {quoted(model.server.url)}",
        f"models = {{ {quoted(model.name)} = {quoted(model.served)} }}",
    ]
    if model.server.metrics is not None:
        lines += ["", "[model.load]", 'kind = "prometheus"', f"url = {quoted(model.server.metrics)}"]
    return lines


def _api(options: SetupOptions, model: OfferedModel) -> str:
    if options.api is not None:
        return options.api
    return "embeddings" if "embed" in f"{model.name} {model.served}".lower() else "chat"


def quoted(value: object) -> str:
    """Return the value as a TOML string."""
    return json.dumps(str(value), ensure_ascii=False)
