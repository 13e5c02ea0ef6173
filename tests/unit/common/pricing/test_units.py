import pytest

from common.pricing.model_input import Modality, modality_of
from common.pricing.units import Units, text_units, units_of
from common.refusal import Refused
from tests.vectors.vector_file import Case, cases

VECTORS = cases("units.json")

STILL = {"b64": "AAAA", "media_type": "image/png", "width": 20, "height": 10}
CLIP = {**STILL, "duration_secs": 3}


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vectors_that_all_implementations_share_hold(case: Case) -> None:
    modality = modality_of(case["endpoint"], case["input"])
    if "refused" in case:
        with pytest.raises(Refused):
            units_of(modality, case["input"])
    else:
        assert modality == case["modality"]
        assert units_of(modality, case["input"]) == Units(case["units_in"], case["units_out"])


@pytest.mark.parametrize(("length", "units"), [(0, 1), (1, 1), (4, 1), (5, 2), (8, 2), (4096, 1024)])
def test_four_bytes_of_text_are_a_unit(length: int, units: int) -> None:
    assert text_units(length) == units


@pytest.mark.parametrize(
    ("modality", "model_input", "units"),
    [
        ("text", {"input": "hi"}, Units(4, 4096)),  # {"input":"hi"}: 14 bytes
        ("text", {"input": "é"}, Units(4, 4096)),  # counted in bytes of UTF-8
        ("text", {"max_output_tokens": 7, "max_tokens": 9}, Units(10, 7)),
        ("text", {"max_output_tokens": 0, "max_tokens": 9}, Units(10, 9)),
        ("text", {"max_completion_tokens": 11.0}, Units(7, 11)),
        ("text", {"max_tokens": 0}, Units(4, 4096)),
        ("embeddings", {"input": "hi", "max_tokens": 5}, Units(8, 0)),
        ("image", {"prompt": "a"}, Units(0, 1024 * 1024)),
        ("image", {"num_images": 3, "width": 8, "height": 8}, Units(0, 192)),
        ("image", {"image": STILL, "width": 8, "height": 8}, Units(200, 64)),
        ("video", {"resolution": "480p", "duration": 2}, Units(0, 854 * 480 * 2)),
        ("video", {"width": 8, "height": 8, "duration": "auto", "video": CLIP}, Units(600, 960)),
    ],
)
def test_units_follow_modality_and_input(modality: Modality, model_input: dict[str, object], units: Units) -> None:
    assert units_of(modality, model_input) == units


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
