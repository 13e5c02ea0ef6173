"""Bundles: many requests of one model in one job, and their results.

    input of the envelope    {"svc_bundle": 1, "items": [{"custom_id"?, "input", "units_out"?}, …]}
    output of the result     {"svc_bundle": 1, "items": [{"custom_id"?, "status", …, "units_in", "units_out"}, …]}
        completed            "output" and "usage"; charged
        failed               "error": {"code"}; not charged
        not_run              nothing more; not charged
    evidence of a provider   {"svc_bundle": {"v": 1, "items": 500}, …}

The result has every item, in the order of the envelope. Items are texts or embeddings.

A settle pays `units_in` in full and the used part of `units_out`. A bundle therefore orders `units_in` = 1 and counts
its input in `units_out`, at the ratio of the order's two rates:

    units_out of the order    Σ units_out + ⌈Σ units_in · rate_in / rate_out⌉, over all items
    charged                   the same sum over the completed items, with the units that each of them used
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import attrs

from common.envelope import MAX_CUSTOM_ID_CODE_POINTS
from common.pricing.model_input import Modality, read_count
from common.pricing.units import MAX_UNITS, Units
from common.refusal import Refused

BUNDLE_KEY: Final = "svc_bundle"
VERSION: Final = 1
MAX_ITEMS: Final = 500
ORDER_UNITS_IN: Final = 1
BUNDLED: Final[frozenset[Modality]] = frozenset({"text", "embeddings"})

ItemStatus = Literal["completed", "failed", "not_run"]
STATUSES: Final[tuple[ItemStatus, ...]] = get_args(ItemStatus)


@attrs.frozen(slots=True)
class BundleItem:
    """Request of a bundle. `units_out` overrides the output units of its input, and is 0 for embeddings."""

    input: dict[str, object]
    custom_id: str | None = None
    units_out: int | None = None


@attrs.frozen(slots=True)
class ItemResult:
    """Result of one item. `units_in` and `units_out` are charged, and 0 unless the item is completed."""

    status: ItemStatus
    custom_id: str | None = None
    output: object = None
    usage: dict[str, object] = attrs.field(factory=dict)
    error_code: str | None = None
    units_in: int = 0
    units_out: int = 0


def is_bundle(model_input: Mapping[str, object]) -> bool:
    return BUNDLE_KEY in model_input


def bundle_input(items: Iterable[BundleItem]) -> dict[str, object]:
    """Return the input of an envelope that carries these items."""
    written = []
    for item in items:
        fields: dict[str, object] = {"input": item.input}
        if item.custom_id is not None:
            fields["custom_id"] = item.custom_id
        if item.units_out is not None:
            fields["units_out"] = item.units_out
        written.append(fields)
    return {BUNDLE_KEY: VERSION, "items": written}


def read_bundle(model_input: Mapping[str, object]) -> tuple[BundleItem, ...]:
    """Read the items of an envelope's input. Refuses any other form as `malformed_bundle`."""
    return tuple(_item(value, f"items[{n}]") for n, value in enumerate(_items(model_input)))


def _item(value: object, param: str) -> BundleItem:
    fields = _fields(value, param, {"input"}, {"custom_id", "units_out"})
    model_input = _object(fields["input"], f"{param}.input")
    if is_bundle(model_input):
        raise _malformed("an item must not be a bundle", param)
    return BundleItem(
        model_input,
        _custom_id(fields, param),
        _count(fields["units_out"], f"{param}.units_out") if "units_out" in fields else None,
    )


def bundle_output(results: Iterable[ItemResult]) -> dict[str, object]:
    """Return the output of a result that carries these items."""
    return {BUNDLE_KEY: VERSION, "items": [item_json(result) for result in results]}


def item_json(result: ItemResult) -> dict[str, object]:
    fields: dict[str, object] = {"status": result.status}
    if result.custom_id is not None:
        fields["custom_id"] = result.custom_id
    if result.status == "completed":
        fields |= {"output": result.output, "usage": result.usage}
    if result.status == "failed":
        fields["error"] = {"code": result.error_code}
    return fields | {"units_in": result.units_in, "units_out": result.units_out}


def read_bundle_output(output: object) -> tuple[ItemResult, ...]:
    """Read the items of a result's output. Refuses any other form as `malformed_bundle`."""
    return tuple(read_item(value, f"items[{n}]") for n, value in enumerate(_items(_object(output, "output"))))


def read_item(value: object, param: str = "item") -> ItemResult:
    status = _status(value, param)
    more = {"completed": {"output", "usage"}, "failed": {"error"}, "not_run": set()}[status]
    fields = _fields(value, param, {"status", "units_in", "units_out"} | more, {"custom_id"})
    units_in, units_out = (_count(fields[name], f"{param}.{name}") for name in ("units_in", "units_out"))
    if status != "completed" and (units_in or units_out):
        raise _malformed(f"{param} is charged but not completed", param)
    return ItemResult(
        status=status,
        custom_id=_custom_id(fields, param),
        output=fields.get("output"),
        usage=_object(fields.get("usage", {}), f"{param}.usage"),
        error_code=_error_code(fields["error"], f"{param}.error") if status == "failed" else None,
        units_in=units_in,
        units_out=units_out,
    )


def _status(value: object, param: str) -> ItemStatus:
    given = _object(value, param).get("status")
    for status in STATUSES:
        if given == status:
            return status
    raise _malformed(f"{param}.status must be one of {', '.join(STATUSES)}", f"{param}.status")


def _error_code(error: object, param: str) -> str:
    code = _fields(error, param, {"code"}, set())["code"]
    if not isinstance(code, str) or not code:
        raise _malformed(f"{param}.code must be a text", f"{param}.code")
    return code


def bundle_units(items: Iterable[Units], rate_in: int, rate_out: int) -> int:
    """Return the output units of an order for these items, or the units to charge for delivered ones.

    Refused above the maximum of an order, and for a rate_in without a rate_out, which cannot express input as output.
    """
    total_in = total_out = 0
    for item in items:
        total_in += item.units_in
        total_out += item.units_out
    if rate_in and not rate_out:
        raise _malformed("the order of a bundle with a rate_in needs a rate_out", "rate_out")
    units = output_units(total_in, total_out, rate_in, rate_out)
    if units > MAX_UNITS:
        raise _malformed(f"the bundle needs {units} units_out; an order can hold at most {MAX_UNITS}", "units_out")
    return units


def output_units(units_in: int, units_out: int, rate_in: int, rate_out: int) -> int:
    """Return both counts in units of output. Input is free without a rate_out."""
    return units_out + (-(-units_in * rate_in // rate_out) if rate_out else 0)


def announcement() -> dict[str, object]:
    """Return the member of a provider's evidence that announces the form."""
    return {BUNDLE_KEY: {"v": VERSION, "items": MAX_ITEMS}}


def announced(evidence: object) -> int | None:
    """Return the largest bundle that published evidence announces, or None."""
    announcement = evidence.get(BUNDLE_KEY) if isinstance(evidence, Mapping) else None
    if not isinstance(announcement, Mapping) or announcement.get("v") != VERSION:
        return None
    items = announcement.get("items")
    return min(items, MAX_ITEMS) if type(items) is int and items > 1 else None


def _items(value: Mapping[str, object]) -> list[object]:
    fields = _fields(value, None, {BUNDLE_KEY, "items"}, set())
    if type(fields[BUNDLE_KEY]) is not int or fields[BUNDLE_KEY] != VERSION:
        raise _malformed(f"{BUNDLE_KEY} must be {VERSION}", BUNDLE_KEY)
    items = fields["items"]
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
        raise _malformed(f"items must have 1 to {MAX_ITEMS} items", "items")
    return items


def _fields(value: object, param: str | None, required: set[str], optional: set[str]) -> Mapping[str, object]:
    fields = _object(value, param)
    for name in sorted(required - fields.keys()):
        raise _malformed(f"{_path(param, name)} is missing", _path(param, name))
    for name in sorted(fields.keys() - required - optional):
        raise _malformed(f"{_path(param, name)} is not a field of this format", _path(param, name))
    return fields


def _object(value: object, param: str | None) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _malformed(f"{param or 'a bundle'} must be a JSON object", param)
    return value


def _custom_id(fields: Mapping[str, object], param: str) -> str | None:
    value = fields.get("custom_id")
    if "custom_id" not in fields:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CUSTOM_ID_CODE_POINTS:
        path = f"{param}.custom_id"
        raise _malformed(f"{path} must have 1 to {MAX_CUSTOM_ID_CODE_POINTS} characters", path)
    return value


def _count(value: object, param: str) -> int:
    try:
        count = read_count(value, param)
    except Refused as refusal:
        raise _malformed(refusal.message, param) from None
    if count > MAX_UNITS:
        raise _malformed(f"{param} must be at most {MAX_UNITS}", param)
    return count


def _path(param: str | None, name: str) -> str:
    return name if param is None else f"{param}.{name}"


def _malformed(message: str, param: str | None) -> Refused:
    return Refused(message, param, "malformed_bundle")
