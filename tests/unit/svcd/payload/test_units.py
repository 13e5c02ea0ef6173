import pytest

from common.pricing.model_input import Modality
from svcd.base.end_reasons import WorkFailed
from svcd.payload.opening import check_units

STILL = {"b64": "AAAA", "media_type": "image/png", "width": 10, "height": 10}


@pytest.mark.parametrize(
    ("modality", "model_input", "units_in", "units_out"),
    [
        ("text", {"input": "x" * 8}, 5, 1),  # {"input":"xxxxxxxx"} has 20 bytes
        ("text", {"input": "x", "max_tokens": 900}, 100, 1),  # the backend enforces the order's limit
        ("embeddings", {"input": "x" * 8}, 5, 0),
        ("image", {"width": 8, "height": 8, "num_images": 2}, 0, 128),
        ("image", {"width": 8, "height": 8, "image": STILL}, 100, 64),
        ("video", {"width": 8, "height": 8, "duration": 2}, 0, 128),
    ],
)
def test_a_payload_within_its_order_passes(
    modality: Modality, model_input: dict[str, object], units_in: int, units_out: int
) -> None:
    check_units(modality, model_input, units_in=units_in, units_out=units_out)


@pytest.mark.parametrize(
    ("modality", "model_input", "units_in", "units_out", "reason"),
    [
        ("text", {"input": "x" * 9}, 5, 100, "units_in_short"),
        ("embeddings", {"input": "x" * 9}, 5, 0, "units_in_short"),
        ("image", {"width": 8, "height": 8, "num_images": 2}, 0, 127, "media_input_refused"),
        ("image", {"width": 8, "height": 8, "image": STILL}, 99, 64, "media_input_refused"),
        ("video", {"width": 8, "height": 8, "duration": 2}, 0, 127, "media_input_refused"),
        ("video", {"resolution": "8k"}, 0, 2**32 - 1, "media_input_refused"),
        ("image", {"image": {"b64": "AAAA"}}, 2**32 - 1, 2**32 - 1, "media_input_refused"),
    ],
)
def test_a_payload_beyond_its_order_fails_the_job(
    modality: Modality, model_input: dict[str, object], units_in: int, units_out: int, reason: str
) -> None:
    with pytest.raises(WorkFailed) as failed:
        check_units(modality, model_input, units_in=units_in, units_out=units_out)
    assert failed.value.reason == reason
