"""What a `[….load]` table of the configuration says."""

from collections.abc import Mapping

import attrs

from common.refusal import Refused
from svcd.base.toml import Table
from svcd.json_path import JsonPath


def _secret(_: object) -> str:
    return "<SECRET>"


@attrs.frozen(slots=True, kw_only=True)
class PrometheusSettings:
    url: str
    headers: dict[str, str] = attrs.field(repr=_secret)
    full_at: float | None  # requests at which the server is full; None: as many as the model has slots
    labels: dict[str, str]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    usage: tuple[str, ...]
    seconds: float


@attrs.frozen(slots=True, kw_only=True)
class JsonSettings:
    url: str
    headers: dict[str, str] = attrs.field(repr=_secret)
    path: JsonPath
    full_at: float
    seconds: float


@attrs.frozen(slots=True, kw_only=True)
class SlotsSettings:
    """No server is asked: the load is that of svcd's own slots."""


ProbeSettings = PrometheusSettings | JsonSettings | SlotsSettings


def read_probe(table: Mapping[str, object]) -> ProbeSettings:
    """`Refused.param` is the key at fault."""
    entries = Table(table)
    settings: ProbeSettings
    match entries.choice("kind", ("prometheus", "json", "slots"), "slots"):
        case "prometheus":
            settings = PrometheusSettings(
                url=entries.url("url"),
                headers=entries.headers("headers"),
                full_at=entries.number("full_at", 0.001, 1e9) if entries.has("full_at") else None,
                labels=entries.text_map("labels"),
                running=entries.texts("running", ()),
                waiting=entries.texts("waiting", ()),
                usage=entries.texts("usage", ()),
                seconds=_seconds(entries),
            )
        case "json":
            settings = JsonSettings(
                url=entries.url("url"),
                headers=entries.headers("headers"),
                path=_path(entries),
                full_at=entries.number("full_at", 0.001, 1e9, 1),
                seconds=_seconds(entries),
            )
        case _:
            settings = SlotsSettings()
    entries.done()
    return settings


def _seconds(table: Table) -> float:
    return table.number("seconds", 0.01, 60, 2)


def _path(table: Table) -> JsonPath:
    path = JsonPath.parse(table.text("path"), "path")
    if not path.is_single:
        raise Refused("path must name one place; it holds [*]", "path")
    return path
