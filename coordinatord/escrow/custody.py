"""What every kind of escrow can do with the keys that it holds."""

from typing import Protocol

import attrs

from common import escrow
from common.box import PublicKey
from common.escrow import mock_measurement, report_data
from common.scalars import base64_of
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.escrow.keys import EscrowKey, open_with_any

# The evidence that an escrow gives for a key, as a value.


@attrs.frozen(slots=True)
class Evidence:
    type: str
    report_data: bytes
    debug: bool
    release: int


@attrs.frozen(slots=True)
class MockEvidence(Evidence):
    """What a development instance says of itself in addition; the real thing would be signed by its hardware."""

    measurement: bytes
    tcb: str
    quote: str


@attrs.frozen(slots=True)
class AnnouncedKey:
    """What GET /key tells."""

    public: PublicKey
    evidence: Evidence
    issued_at: int


def static_evidence(public: PublicKey, release: int) -> Evidence:
    return Evidence(escrow.STATIC, report_data(public), debug=False, release=release)


def mock_evidence(public: PublicKey, release: int) -> MockEvidence:
    """The quote repeats measurement and report_data: a stand-in that nobody should take for a proof."""
    measurement, bound = mock_measurement(release), report_data(public)
    return MockEvidence(
        escrow.MOCK,
        bound,
        debug=False,
        release=release,
        measurement=measurement,
        tcb="mock",
        quote=base64_of(measurement + bound),
    )


# The answer of an instance that joins and was not handed a key yet.


def unminted() -> Retryable:
    return Retryable("not_ready", "this escrow waits for its keys", "escrow_key_unminted", retry_after=1)


class Custody(Protocol):
    def announced(self) -> PublicKey | None:
        """The key that new orders are sealed to; None while there is none yet."""

    def evidence(self, public: PublicKey) -> Evidence:
        """What is said about a key of this escrow."""

    async def open(self, seed_wrap: bytes) -> bytearray | None:
        """The seed under a wrap, or None when no key that is held opens it. Whoever gets it wipes it."""

    async def has_lost_keys(self) -> bool:
        """Whether a wrap that does not open may have been sealed to a key of ours that nobody holds any more."""

    async def begin(self) -> None:
        """What must be before anything is served. Raises Fatal or Retryable when it cannot be."""

    async def run(self) -> None:
        """What goes on beside the requests, until cancelled."""

    def end(self) -> None:
        """Wipes every key."""


class StaticCustody:
    """Keys that the operator gave: the first is announced, all of them open, none is lost by a restart."""

    def __init__(self, keys: tuple[EscrowKey, ...], release: int) -> None:
        self._keys = keys
        self._release = release

    def announced(self) -> PublicKey | None:
        return self._keys[0].public

    def evidence(self, public: PublicKey) -> Evidence:
        return static_evidence(public, self._release)

    async def open(self, seed_wrap: bytes) -> bytearray | None:
        return open_with_any(self._keys, seed_wrap)

    async def has_lost_keys(self) -> bool:
        return False

    async def begin(self) -> None:
        """The keys are there."""

    async def run(self) -> None:
        """Nothing changes while the process lives."""

    def end(self) -> None:
        for key in self._keys:
            key.erase()


def announced_key(custody: Custody, clock: Clock) -> AnnouncedKey:
    """What GET /key tells. Raises Retryable while there is no key."""
    public = custody.announced()
    if public is None:
        raise unminted()
    return AnnouncedKey(public, custody.evidence(public), int(clock()))
