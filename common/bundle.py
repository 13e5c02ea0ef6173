"""Bundles: many requests of one model in one job, and their results.

    input of the envelope    {"svc_bundle": 1, "items": [{"custom_id"?, "input", "units_out"?}, …]}
    output of the result     {"svc_bundle": 1, "items": [{"custom_id"?, "status", …, "units_in", "units_out"}, …]}
        completed            adds "output" and "usage"; charged
        failed               adds "error": {"code"}; not charged
        not_run              adds nothing; not charged
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
from common.json_object import MAX_CODE_LENGTH, ObjectReader
from common.pricing.model_input import Modality
from common.pricing.units import MAX_UNITS, Units

BUNDLE_MEMBER: Final = "svc_bundle"
VERSION: Final = 1
MAX_ITEMS: Final = 500
ORDER_UNITS_IN: Final = 1
BUNDLED_MODALITIES: Final[frozenset[Modality]] = frozenset({"text", "embeddings"})

ItemStatus = Literal["completed", "failed", "not_run"]
ITEM_STATUSES: Final[tuple[ItemStatus, ...]] = get_args(ItemStatus)
_READER: Final = ObjectReader("a bundle", "malformed_bundle")


@attrs.frozen(slots=True)
class BundleItem:
    """One request of a bundle. `units_out` overrides the output units computed from `input`, except for embeddings."""

    input: dict[str, object]
    custom_id: str | None = None
    units_out: int | None = None


@attrs.frozen(slots=True)
class ItemResult:
    """Result of one item. The charged `units_in` and `units_out` are 0 unless the item is completed."""

    status: ItemStatus
    custom_id: str | None = None
    output: object = None
    usage: dict[str, object] = attrs.field(factory=dict)
    error_code: str | None = None
    units_in: int = 0
    units_out: int = 0


def is_bundle(model_input: Mapping[str, object]) -> bool:
    return BUNDLE_MEMBER in model_input


def bundle_input(items: Iterable[BundleItem]) -> dict[str, object]:
    """Return the envelope's input for these items."""
    written = []
    for item in items:
        fields: dict[str, object] = {"input": item.input}
        if item.custom_id is not None:
            fields["custom_id"] = item.custom_id
        if item.units_out is not None:
            fields["units_out"] = item.units_out
        written.append(fields)
    return {BUNDLE_MEMBER: VERSION, "items": written}


def read_bundle(model_input: Mapping[str, object]) -> tuple[BundleItem, ...]:
    """Read the items of an envelope's input. Refuse a malformed bundle as `malformed_bundle`."""
    return tuple(_read_request(value, f"items[{n}]") for n, value in enumerate(_read_items(model_input)))


def _read_request(value: object, param: str) -> BundleItem:
    fields = _READER.read_fields(value, param, {"input"}, {"custom_id", "units_out"})
    model_input = _READER.read_object(fields["input"], f"{param}.input")
    if is_bundle(model_input):
        raise _READER.refusal("an item must not be a bundle", param)
    return BundleItem(
        model_input,
        _read_custom_id(fields, param),
        _READER.read_count(fields["units_out"], f"{param}.units_out") if "units_out" in fields else None,
    )


def bundle_output(results: Iterable[ItemResult]) -> dict[str, object]:
    """Return the result's output for these items."""
    return {BUNDLE_MEMBER: VERSION, "items": [item_result_json(result) for result in results]}


def item_result_json(result: ItemResult) -> dict[str, object]:
    fields: dict[str, object] = {"status": result.status}
    if result.custom_id is not None:
        fields["custom_id"] = result.custom_id
    if result.status == "completed":
        fields |= {"output": result.output, "usage": result.usage}
    if result.status == "failed":
        fields["error"] = {"code": result.error_code}
    return fields | {"units_in": result.units_in, "units_out": result.units_out}


def read_bundle_output(output: object) -> tuple[ItemResult, ...]:
    """Read the items of a result's output. Refuse a malformed bundle as `malformed_bundle`."""
    return tuple(
        read_item_result(value, f"items[{n}]")
        for n, value in enumerate(_read_items(_READER.read_object(output, "output")))
    )


def read_item_result(value: object, param: str = "item") -> ItemResult:
    status = _read_status(value, param)
    extra = {"completed": {"output", "usage"}, "failed": {"error"}, "not_run": set()}[status]
    fields = _READER.read_fields(value, param, {"status", "units_in", "units_out"} | extra, {"custom_id"})
    units_in, units_out = (_READER.read_count(fields[name], f"{param}.{name}") for name in ("units_in", "units_out"))
    if status != "completed" and (units_in or units_out):
        raise _READER.refusal(f"{param}: units_in and units_out must be 0 unless status is completed", param)
    return ItemResult(
        status=status,
        custom_id=_read_custom_id(fields, param),
        output=fields.get("output"),
        usage=_READER.read_object(fields.get("usage", {}), f"{param}.usage"),
        error_code=_read_error_code(fields["error"], f"{param}.error") if status == "failed" else None,
        units_in=units_in,
        units_out=units_out,
    )


def _read_status(value: object, param: str) -> ItemStatus:
    given = _READER.read_object(value, param).get("status")
    for status in ITEM_STATUSES:
        if given == status:
            return status
    raise _READER.refusal(f"{param}.status must be one of {', '.join(ITEM_STATUSES)}", f"{param}.status")


def _read_error_code(error: object, param: str) -> str:
    return _READER.read_text(_READER.read_fields(error, param, {"code"})["code"], f"{param}.code", MAX_CODE_LENGTH)


def bundle_units(items: Iterable[Units], rate_in: int, rate_out: int) -> int:
    """Return the `units_out` to order for these items. For completed items, this is the number of units to charge.

    Refuse more units than fit in an order. Refuse a rate_in without a rate_out, because the input units could not be
    converted to output units.
    """
    total_in = total_out = 0
    for item in items:
        total_in += item.units_in
        total_out += item.units_out
    if rate_in and not rate_out:
        raise _READER.refusal("the order of a bundle must have a rate_out if it has a rate_in", "rate_out")
    units = convert_to_output_units(total_in, total_out, rate_in, rate_out)
    if units > MAX_UNITS:
        raise _READER.refusal(f"the bundle needs {units} units_out; an order can have at most {MAX_UNITS}", "units_out")
    return units


def convert_to_output_units(units_in: int, units_out: int, rate_in: int, rate_out: int) -> int:
    """Return `units_out` plus `units_in` converted at the ratio of the rates. Without rate_out, input is free."""
    return units_out + (-(-units_in * rate_in // rate_out) if rate_out else 0)


def announcement() -> dict[str, object]:
    """Return the evidence member with which a provider announces that it accepts bundles."""
    return {BUNDLE_MEMBER: {"v": VERSION, "items": MAX_ITEMS}}


def announced_max_items(evidence: object) -> int | None:
    """Return the maximum number of items per bundle that a provider's evidence announces.

    Return None if the provider accepts no bundles.
    """
    announcement = evidence.get(BUNDLE_MEMBER) if isinstance(evidence, Mapping) else None
    if not isinstance(announcement, Mapping) or announcement.get("v") != VERSION:
        return None
    items = announcement.get("items")
    return min(items, MAX_ITEMS) if type(items) is int and items > 1 else None


def _read_items(value: object) -> list[object]:
    fields = _READER.read_fields(value, None, {BUNDLE_MEMBER, "items"})
    _READER.require_version(fields, BUNDLE_MEMBER, VERSION)
    return _READER.read_list(fields["items"], "items", 1, MAX_ITEMS)


def _read_custom_id(fields: Mapping[str, object], param: str) -> str | None:
    if "custom_id" not in fields:
        return None
    return _READER.read_text(fields["custom_id"], f"{param}.custom_id", MAX_CUSTOM_ID_CODE_POINTS)
