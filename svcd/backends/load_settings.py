"""Settings of a load probe: the `[model.load]` table of the configuration, one struct per kind."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from svcd.base.json_path import SinglePath
from svcd.base.toml import Headers, Texts, TomlTable, Url, read_table

FullAt = Annotated[float, Meta(ge=0.001, le=1e9)]
AnswerSeconds = Annotated[float, Meta(ge=0.01, le=60)]


class PrometheusSettings(TomlTable, frozen=True, kw_only=True, tag="prometheus", tag_field="kind"):
    url: Url
    headers: Headers = Headers()
    full_at: FullAt | None = None  # requests at which the server is full; None: as many as the model has slots
    labels: dict[str, str] = field(default_factory=dict)
    running: Texts = ()
    waiting: Texts = ()
    usage: Texts = ()
    seconds: AnswerSeconds = 2.0


class JsonSettings(TomlTable, frozen=True, kw_only=True, tag="json", tag_field="kind"):
    url: Url
    headers: Headers = Headers()
    path: SinglePath
    full_at: FullAt = 1.0
    seconds: AnswerSeconds = 2.0


class SlotsSettings(TomlTable, frozen=True, kw_only=True, tag="slots", tag_field="kind"):
    """Use the share of busy slots as the load, without a request to a server."""


ProbeSettings = PrometheusSettings | JsonSettings | SlotsSettings


def read_probe(table: Mapping[str, object]) -> ProbeSettings:
    """Read the table. Raise `Mistake`, whose `param` is the key at fault."""
    return read_table({"kind": "slots", **table}, ProbeSettings)  # type: ignore[arg-type] # a union is a type
