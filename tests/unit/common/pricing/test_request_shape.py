import pytest

from common.pricing.model_input import modality_of

ASSET = {"b64": "AAAA", "media_type": "image/png", "width": 1, "height": 1}


@pytest.mark.parametrize(
    ("model_input", "modality"),
    [
        ({}, "text"),
        ({"input": "hello"}, "text"),
        ({"prompt": "a cat", "height": 512}, "text"),
        ({"max_output_tokens": 1}, "text"),
        ({"max_tokens": 0}, "text"),
        ({"max_completion_tokens": 5, "duration": 4, "width": 512}, "text"),
        ({"max_tokens": None, "duration": 4}, "video"),
        ({"duration": "auto"}, "video"),
        ({"duration_secs": 3, "num_images": 2}, "video"),
        ({"num_images": 1}, "image"),
        ({"width": 512}, "image"),
        ({"resolution": "720p"}, "image"),
        ({"image": ASSET}, "image"),
        ({"end_image": ASSET}, "image"),
        ({"video": ASSET}, "image"),
        ({"reference_images": [ASSET]}, "image"),
        ({"reference_videos": [ASSET]}, "image"),
        ({"reference_audios": [ASSET]}, "image"),
        ({"reference_images": []}, "text"),
    ],
)
def test_parameters_tell_the_modality(model_input: dict[str, object], modality: str) -> None:
    assert modality_of(None, model_input) == modality
    assert modality_of("/v1/responses", model_input) == modality
