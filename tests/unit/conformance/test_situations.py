"""Judgements of a provider's situations that no run of a right provider shows."""

from typing import Any

import pytest

from tests.conformance.market import Heard
from tests.conformance.provider_market import ProviderMarket
from tests.conformance.situations import ROUNDS, again_at_once, signed_anew

JOB = "0x" + "0a" * 32
REFUSED = {"op": "settle", "job_id": JOB, "issued_at": 1_800_000_000, "signature": "0x11", "result": "AA=="}


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ({**REFUSED, "issued_at": 1_800_000_001, "signature": "0x22"}, None),
        # An earlier time is right for a clock that was ahead; another result is another op in the same second.
        ({**REFUSED, "issued_at": 1_799_999_000, "signature": "0x22"}, None),
        ({**REFUSED, "result": "AQ=="}, None),
        (REFUSED, "the refused settle again, byte for byte: issued_at 1800000000"),
    ],
)
def test_only_the_refused_bytes_again_are_wrong_after_stale_op(again: dict[str, Any], said: str | None) -> None:
    market = ProviderMarket()
    market.heard += [Heard(0.0, "settle", JOB, dict(REFUSED), 409), Heard(1.0, "settle", JOB, dict(again), 201)]
    [stale] = [one for situations in ROUNDS for one in situations if one.tried == "settle refused as stale"]
    assert stale.said == "settled, and no fail, signed anew with a new issued_at"
    assert signed_anew("settle")(stale, market, JOB) == said


@pytest.mark.parametrize(("waited", "said"), [(0.4, None), (31.0, "the claim again after 31 s")])
def test_claim_with_a_forgotten_session_is_sent_again_after_a_sign_in_and_not_when_it_is_offered_anew(
    waited: float, said: str | None
) -> None:
    market = ProviderMarket()
    market.heard += [
        Heard(at, "claim", JOB, {"op": "claim"}, status) for at, status in ((5.0, 401), (5.0 + waited, 201))
    ]
    [forgotten] = [one for each in ROUNDS for one in each if one.tried == "claim with a session that is forgotten"]
    assert forgotten.expected.further is again_at_once
    assert again_at_once(forgotten, market, JOB) == said
