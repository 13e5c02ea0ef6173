import pytest

from common.pricing.model_input import Modality
from svcd.base.end_reasons import WorkFailed
from svcd.payload.modality import modality_for


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
