import math

import pytest

from common.envelope import ResultBody
from common.pricing.model_input import Modality
from common.refusal import Refused
from svcd.base.end_reasons import WorkFailed
from svcd.payload.modality import modality_for
from svcd.payload.opening import check_units
from svcd.payload.sealable import to_sealable


@pytest.mark.parametrize(
    ("serves", "model_input", "units_out", "modality"),
    [
        ({"text"}, {"input": "x"}, 100, "text"),
        ({"embeddings"}, {"input": "x", "image": {}}, 0, "embeddings"),
        ({"text", "embeddings"}, {"input": "x"}, 0, "embeddings"),
        ({"text", "embeddings"}, {"input": "x"}, 100, "text"),
        ({"image"}, {"prompt": "x"}, 100, "image"),
        ({"video"}, {"prompt": "x"}, 100, "video"),
        ({"image", "video"}, {"prompt": "x", "duration": 5}, 100, "video"),
        ({"image", "video"}, {"prompt": "x", "width": 64}, 100, "image"),
    ],
)
def test_the_shape_decides_among_what_the_model_serves(
    serves: set[Modality], model_input: dict[str, object], units_out: int, modality: Modality
) -> None:
    assert modality_for(serves, model_input, units_out) == modality


@pytest.mark.parametrize(
    ("serves", "model_input", "reason"),
    [
        (set(), {"input": "x"}, "modality_unknown"),
        ({"image", "video"}, {"prompt": "x"}, "modality_unknown"),
        ({"text"}, {"prompt": "x", "width": 64}, "media_input_refused"),
        ({"image"}, {"prompt": "x", "duration": 5}, "media_input_refused"),
    ],
)
def test_undecided_or_unsupported_modality_fails_the_job(
    serves: set[Modality], model_input: dict[str, object], reason: str
) -> None:
    with pytest.raises(WorkFailed) as failed:
        modality_for(serves, model_input, 100)
    assert failed.value.reason == reason


@pytest.mark.parametrize(
    ("written", "sealed"),
    [
        ("a\x00b", "a\ufffdb"),
        ("half \ud83d", "half \ufffd"),
        ("parted \ud83d\ude00", "parted 😀"),
        (2**63, str(2**63)),
        (-(2**53), str(-(2**53))),
        (2**53 - 1, 2**53 - 1),
        (math.nan, None),
        (-math.inf, None),
        ([True, None, 0.5, {"k\x00": "é"}], [True, None, 0.5, {"k\ufffd": "é"}]),
    ],
)
def test_what_canonical_json_lacks_is_written_in_its_nearest_way(written: object, sealed: object) -> None:
    assert to_sealable(written) == sealed
    ResultBody(bytes(32), to_sealable(written), {}).encode()


def test_deepest_sealable_value_passes_and_deeper_fails() -> None:
    deep: object = 1
    for _ in range(31):
        deep = [deep]
    ResultBody(bytes(32), to_sealable(deep), {}).encode()
    with pytest.raises(Refused):
        to_sealable([deep])


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
