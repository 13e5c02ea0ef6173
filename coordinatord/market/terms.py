"""Read the market file (TOML or JSON), which describes a market before and after its deployment."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from common.address_book import MAX_TOKEN_DECIMALS
from common.api import limits
from common.daemon.process import Fatal
from common.refusal import Refused
from common.scalars import read_uint
from common.strict_json import parse
from coordinatord.market.contracts import read_address

# Limits of the contracts. Terms that exceed a limit are rejected before the deployment starts.
MAX_FEE_BPS: Final = 2000
MAX_SLA_S: Final = limits.MAX_SLA_S
MAX_NAME_BYTES: Final = 256
MIN_TOKEN_GAS: Final = 200_000
MAX_TOKEN_GAS: Final = 2_000_000
_MAX_SCHEMA_BYTES: Final = 16_384  # stored in a log, which costs gas per byte

_MARKET_KEYS: Final = (
    *("chain_id", "token", "decimals", "token_name", "token_version", "owner", "treasury"),
    *("fee_bps", "gas_fee", "max_gas_fee", "point_price", "token_gas", "slas", "relayers", "models"),
)
_OPTIONAL_KEYS: Final = ("token_name", "token_version", "token_gas")
_MODEL_KEYS: Final = ("id", "name", "owned_by", "params_schema", "params_schema_file")


@attrs.frozen(slots=True)
class ModelTerms:
    """Model of a market. `params_schema` is JSON without spaces, or empty."""

    model_id: int
    name: str
    owned_by: str = ""
    params_schema: str = ""


@attrs.frozen(slots=True, kw_only=True)
class MarketTerms:
    """Terms of a market. Amounts are in the token's smallest unit. If `token_name` or `token_version` is None, the
    value is read from the token."""

    chain_id: int
    token: str
    decimals: int
    token_name: str | None = None
    token_version: str | None = None
    owner: str
    treasury: str
    fee_bps: int
    gas_fee: int
    max_gas_fee: int  # highest gas_fee that an admin can set later; fixed by the deployment
    point_price: int  # treasury income per reputation point of a provider
    token_gas: int = MIN_TOKEN_GAS  # gas limit of a call to the token
    slas: tuple[int, ...]
    relayers: tuple[str, ...]
    models: tuple[ModelTerms, ...]

    def as_json(self) -> dict[str, object]:
        return attrs.asdict(self)


def read_terms(path: Path | None, overrides: Mapping[str, object]) -> MarketTerms:
    """Read the market file. `overrides` that are not None replace values of the file. Raise Fatal for a wrong value."""
    try:
        values = dict(_read_file(path)) if path is not None else {}
        values |= {name: value for name, value in overrides.items() if value is not None}
        return _parse_terms(values, path.parent if path is not None else Path())
    except Refused as wrong:
        raise Fatal(f"{'the market' if path is None else path}: {wrong}") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as missing:
        raise Fatal(f"{path}: {missing.strerror}") from None
    except ValueError as wrong:
        raise Refused(f"must be {'JSON' if path.suffix == '.json' else 'TOML'}: {wrong}") from None
    if not isinstance(document, dict):
        raise Refused("the file must contain a JSON object")
    return document


def _parse_terms(values: Mapping[str, object], folder: Path) -> MarketTerms:
    for key in values:
        if key not in _MARKET_KEYS:
            raise Refused(f"{key} is not a key of a market file; the keys are {', '.join(_MARKET_KEYS)}", key)
    for key in _MARKET_KEYS:
        if key not in values and key not in _OPTIONAL_KEYS:
            raise Refused(f"{key} is required: set it in the file, or with --{key.replace('_', '-')}", key)
    terms = MarketTerms(
        chain_id=_read_int_between(values["chain_id"], 1, 2**53 - 1, "chain_id"),
        token=read_address(values["token"], "token"),
        decimals=_read_int_between(values["decimals"], 0, MAX_TOKEN_DECIMALS, "decimals"),
        token_name=_read_optional_text(values, "token_name"),
        token_version=_read_optional_text(values, "token_version"),
        owner=read_address(values["owner"], "owner"),
        treasury=read_address(values["treasury"], "treasury"),
        fee_bps=_read_int_between(values["fee_bps"], 0, MAX_FEE_BPS, "fee_bps"),
        gas_fee=read_uint(values["gas_fee"], 128, "gas_fee"),
        max_gas_fee=read_uint(values["max_gas_fee"], 128, "max_gas_fee"),
        point_price=read_uint(values["point_price"], 96, "point_price"),
        token_gas=_read_int_between(values.get("token_gas", MIN_TOKEN_GAS), MIN_TOKEN_GAS, MAX_TOKEN_GAS, "token_gas"),
        slas=tuple(_read_int_between(v, 1, MAX_SLA_S, f"slas[{n}]") for n, v in enumerate(_read_list(values, "slas"))),
        relayers=tuple(read_address(v, f"relayers[{n}]") for n, v in enumerate(_read_list(values, "relayers"))),
        models=tuple(_parse_model(v, f"models[{n}]", folder) for n, v in enumerate(_read_list(values, "models"))),
    )
    _require_distinct(terms.slas, "slas")
    _require_distinct(terms.relayers, "relayers")
    _require_distinct([model.model_id for model in terms.models], "models: their ids")
    _require_distinct([model.name for model in terms.models], "models: their names")
    if terms.gas_fee > terms.max_gas_fee:
        raise Refused(f"gas_fee must not be above max_gas_fee, {terms.max_gas_fee}", "gas_fee")
    if terms.treasury == terms.token:
        raise Refused("treasury must not be the token: payments to the token are lost", "treasury")
    return terms


def read_model(model_id: object, name: object, owned_by: object, schema: object, param: str) -> ModelTerms:
    model = ModelTerms(
        _read_int_between(model_id, 1, 2**32 - 1, f"{param}.id"),
        _read_text(name, f"{param}.name"),
        _read_text(owned_by, f"{param}.owned_by", min_bytes=0),
        json.dumps(schema, separators=(",", ":"), ensure_ascii=False) if schema is not None else "",
    )
    if schema is not None and not isinstance(schema, dict):
        raise Refused(f"{param}.params_schema must be a JSON Schema object", param)
    if schema is not None:
        parse(model.params_schema.encode())  # the coordinator would not publish an invalid schema
    if len(model.params_schema.encode()) > _MAX_SCHEMA_BYTES:
        raise Refused(f"{param}.params_schema must be at most {_MAX_SCHEMA_BYTES} bytes", param)
    return model


def read_schema(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as missing:
        raise Refused(f"{path}: {missing.strerror}") from None
    except ValueError as wrong:
        raise Refused(f"{path} must be JSON: {wrong}") from None


def _parse_model(value: object, param: str, folder: Path) -> ModelTerms:
    if not isinstance(value, dict):
        raise Refused(f"{param} must be a table with id and name", param)
    for key in value:
        if key not in _MODEL_KEYS:
            raise Refused(f"{param}.{key} is not a key of a model; the keys are {', '.join(_MODEL_KEYS)}", param)
    for key in ("id", "name"):
        if key not in value:
            raise Refused(f"{param}.{key} is required", param)
    schema, file = value.get("params_schema"), value.get("params_schema_file")
    if schema is not None and file is not None:
        raise Refused(f"{param} must not have both params_schema and params_schema_file", param)
    if file is not None:
        schema = read_schema(folder / _read_text(file, f"{param}.params_schema_file"))
    return read_model(value["id"], value["name"], value.get("owned_by", ""), schema, param)


def _read_int_between(value: object, low: int, high: int, param: str) -> int:
    number = read_uint(value, 256, param)
    if not low <= number <= high:
        raise Refused(f"{param} must be in {low}..{high}", param)
    return number


def _read_text(value: object, param: str, min_bytes: int = 1) -> str:
    if not isinstance(value, str) or not min_bytes <= len(value.encode()) <= MAX_NAME_BYTES:
        raise Refused(f"{param} must be a text of {min_bytes} to {MAX_NAME_BYTES} bytes", param)
    return value


def _read_optional_text(values: Mapping[str, object], key: str) -> str | None:
    return _read_text(values[key], key) if key in values else None


def _read_list(values: Mapping[str, object], key: str) -> list[object]:
    value = values[key]
    if not isinstance(value, list) or not value:
        raise Refused(f"{key} must be a list with at least one entry", key)
    return value


def _require_distinct(values: "tuple[object, ...] | list[Any]", label: str) -> None:
    for value in values:
        if list(values).count(value) > 1:
            raise Refused(f"{label} must be distinct: {value} appears more than once", label)
