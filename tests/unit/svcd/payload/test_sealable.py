import math

import pytest

from common.envelope import ResultBody
from common.refusal import Refused
from svcd.payload.sealable import to_sealable


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
