import pytest

from common.pricing.model_input import Modality, modality_of
from common.pricing.units import Units, units_of
from common.refusal import Refused
from tests.vectors.vector_file import Case, cases

VECTORS = cases("units.json")


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vectors_that_all_implementations_share_hold(case: Case) -> None:
    modality = modality_of(case["endpoint"], case["input"])
    if "refused" in case:
        with pytest.raises(Refused):
            units_of(modality, case["input"])
    else:
        assert modality == case["modality"]
        assert units_of(modality, case["input"]) == Units(case["units_in"], case["units_out"])


def test_units_out_may_be_overridden_except_for_embeddings() -> None:
    assert units_of("text", {"max_tokens": 5}, units_out=0) == Units(4, 0)
    assert units_of("image", {}, units_out=77) == Units(0, 77)
    assert units_of("embeddings", {"input": ""}, units_out=77).units_out == 0


@pytest.mark.parametrize(
    ("modality", "model_input", "units_out", "param"),
    [
        ("text", {"max_tokens": -1}, None, "max_tokens"),
        ("text", {"max_output_tokens": 5, "max_tokens": "many"}, None, "max_tokens"),
        ("text", {"max_tokens": 2**32}, None, "units_out"),
        ("text", {}, -1, "units_out"),
        ("image", {"num_images": 0}, None, "num_images"),
        ("video", {"resolution": "4k", "duration": 3600}, None, "units_out"),
    ],
)
def test_units_that_no_order_can_hold_are_refused(
    modality: Modality, model_input: dict[str, object], units_out: int | None, param: str
) -> None:
    with pytest.raises(Refused) as refused:
        units_of(modality, model_input, units_out=units_out)
    assert refused.value.param == param
