"""Keys that an operator supplies, and the evidence of each kind of escrow."""

import base64

import attrs
import pytest

from common import box
from common.box import PublicKey
from common.escrow_evidence import mock_measurement, report_data
from coordinatord.api.escrow.custody import (
    AnnouncedKey,
    DevelopmentEvidence,
    KeyEvidence,
    StaticCustody,
    announced_key,
    mock_evidence,
)
from coordinatord.api.escrow.keys import KeyPair
from coordinatord.base.errors import Retryable

pytestmark = pytest.mark.anyio

SEED = bytes(range(32))


@pytest.fixture
def keys() -> tuple[KeyPair, ...]:
    return KeyPair.generate(), KeyPair.generate(), KeyPair.generate()


class Unminted(StaticCustody):
    def current_key(self) -> PublicKey | None:
        return None


def test_first_key_is_announced_with_current_evidence(
    keys: tuple[KeyPair, ...],
) -> None:
    public = keys[0].public
    evidence = KeyEvidence("static-coordinator-v1", report_data(public), debug=False, release=7)
    assert announced_key(StaticCustody(keys, 7), lambda: 1_800_000_000.9) == AnnouncedKey(
        public, evidence, 1_800_000_000
    )


def test_nothing_is_announced_before_the_first_key(keys: tuple[KeyPair, ...]) -> None:
    with pytest.raises(Retryable) as trouble:
        announced_key(Unminted(keys, 7), lambda: 0)
    assert attrs.astuple(trouble.value) == (
        "not_ready", "this escrow has no keys yet; try again", "escrow_key_unminted", 1
    )  # fmt: skip


async def test_every_key_opens_its_wraps_until_the_end(keys: tuple[KeyPair, ...]) -> None:
    custody = StaticCustody(keys, 7)
    wraps = [box.seal(key.public, SEED) for key in keys]
    assert [await custody.open_wrap(wrap) for wrap in wraps] == [SEED] * 3
    assert await custody.open_wrap(box.seal(KeyPair.generate().public, SEED)) is None
    assert await custody.has_lost_keys() is False
    custody.wipe_keys()
    assert [await custody.open_wrap(wrap) for wrap in wraps] == [None] * 3


def test_development_evidence_names_release_and_key(keys: tuple[KeyPair, ...]) -> None:
    public = keys[0].public
    evidence = mock_evidence(public, 3)
    measurement, bound = mock_measurement(3), report_data(public)
    assert evidence == DevelopmentEvidence(
        "mock-coordinator-v1", bound, debug=False, release=3, measurement=measurement, tcb="mock", quote=evidence.quote
    )
    assert base64.b64decode(evidence.quote) == measurement + bound
