import pytest

from common import bundle
from common.bundle import BundleItem, ItemResult, bundle_units, read_bundle, read_bundle_output
from common.pricing.model_input import modality_of
from common.pricing.units import Units, units_of
from common.refusal import Refused
from tests.vectors.vector_file import Case, cases

VECTORS = cases("bundle.json")


def units_of_case(case: Case) -> int:
    rates = int(case["rate_in"]), int(case["rate_out"])
    if case["kind"] == "result":
        return bundle_units(
            (Units(item.units_in, item.units_out) for item in read_bundle_output(case["output"])), *rates
        )
    units = [
        units_of(modality_of(case["endpoint"], item.input), item.input, units_out=item.units_out)
        for item in read_bundle(case["input"])
    ]
    return bundle_units(units, *rates)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_shared_vectors_hold(case: Case) -> None:
    if case["kind"] == "evidence":
        assert (bundle.announced_max_items(case["evidence"]) or 0) == case["largest"]
    elif "refused" in case:
        with pytest.raises(Refused) as refused:
            units_of_case(case)
        assert refused.value.code == case["refused"]
    else:
        expected = case["completion_tok"] if case["kind"] == "result" else case["units_out"]
        assert units_of_case(case) == expected


def test_items_survive_the_round_trip() -> None:
    items = (BundleItem({"input": "hi"}), BundleItem({"input": "ho"}, "b", 7))
    assert read_bundle(bundle.bundle_input(items)) == items
    results = (
        ItemResult("completed", "a", [1], {"units": 2}, None, 3, 4),
        ItemResult("failed", error_code="backend_error"),
        ItemResult("not_run", "c"),
    )
    assert read_bundle_output(bundle.bundle_output(results)) == results


def test_bundle_of_501_items_is_refused() -> None:
    assert len(read_bundle(bundle.bundle_input([BundleItem({})] * 500))) == 500
    with pytest.raises(Refused, match="1 to 500"):
        read_bundle(bundle.bundle_input([BundleItem({})] * 501))
