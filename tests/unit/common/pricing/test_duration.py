import pytest

from common.pricing.duration import priced_seconds
from common.refusal import Refused


@pytest.mark.parametrize(
    ("model_input", "seconds"),
    [
        ({}, 5),
        ({"duration": None}, 5),
        ({"duration": 8}, 8),
        ({"duration": 7.9}, 7),
        ({"duration": 0.9}, 5),
        ({"duration": 0}, 5),
        ({"duration": -3}, 5),
        ({"duration": "12"}, 12),
        ({"duration": "0"}, 5),
        ({"duration": "auto"}, 15),
        ({"duration_secs": 6, "duration": 9}, 6),
        ({"duration_secs": None, "duration": 9}, 9),
        ({"duration_secs": 0, "duration": 9}, 5),
    ],
)
def test_seconds_follow_the_parameters(model_input: dict[str, object], seconds: int) -> None:
    assert priced_seconds(model_input) == seconds


@pytest.mark.parametrize("value", ["8s", "", "١٢", "1.5", "-3", True, [5], 1e300])
def test_other_durations_are_refused(value: object) -> None:
    with pytest.raises(Refused) as refused:
        priced_seconds({"duration": value})
    assert refused.value.param == "duration"
