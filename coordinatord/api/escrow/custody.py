"""Custody of escrow keys: announce one, open wraps with any, give evidence of them."""

from typing import Protocol

import attrs

from common import escrow_evidence
from common.box import PublicKey
from common.escrow_evidence import mock_measurement, report_data
from common.scalars import base64_of
from coordinatord.api.escrow.keys import KeyPair, open_with_any
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable


@attrs.frozen(slots=True)
class KeyEvidence:
    """Evidence that an escrow gives for a key."""

    type: str
    report_data: bytes
    debug: bool
    release: int


@attrs.frozen(slots=True)
class DevelopmentEvidence(KeyEvidence):
    """Evidence of a development instance; that of a real one would be signed by its hardware."""

    measurement: bytes
    tcb: str
    quote: str


@attrs.frozen(slots=True)
class AnnouncedKey:
    """Answer of GET /key."""

    public: PublicKey
    evidence: KeyEvidence
    issued_at: int


def static_evidence(public: PublicKey, release: int) -> KeyEvidence:
    return KeyEvidence(escrow_evidence.STATIC, report_data(public), debug=False, release=release)


def mock_evidence(public: PublicKey, release: int) -> DevelopmentEvidence:
    """The quote repeats measurement and report_data: a stand-in that nobody should take for a proof."""
    measurement, bound = mock_measurement(release), report_data(public)
    return DevelopmentEvidence(
        escrow_evidence.MOCK,
        bound,
        debug=False,
        release=release,
        measurement=measurement,
        tcb="mock",
        quote=base64_of(measurement + bound),
    )


def unminted() -> Retryable:
    """Error of an instance that joins and was not handed a key yet."""
    return Retryable("not_ready", "this escrow waits for its keys", "escrow_key_unminted", retry_after=1)


class Custody(Protocol):
    def announced(self) -> PublicKey | None:
        """The key that new orders are sealed to; None while there is none yet."""

    def evidence(self, public: PublicKey) -> KeyEvidence:
        """Evidence for a key of this escrow."""

    async def open(self, seed_wrap: bytes) -> bytearray | None:
        """The seed under a wrap, or None when no key that is held opens it. Whoever gets it wipes it."""

    async def has_lost_keys(self) -> bool:
        """True when a wrap that does not open may have been sealed to a key of ours that nobody holds any more."""

    async def begin(self) -> None:
        """Acquire the first key; called once before serving. Raises Fatal or Retryable when it cannot."""

    async def run(self) -> None:
        """Rotate, pull and erase keys in the background, until cancelled."""

    def end(self) -> None:
        """Wipes every key."""


class StaticCustody:
    """Keys that the operator gave: the first is announced, all of them open, none is lost by a restart."""

    def __init__(self, keys: tuple[KeyPair, ...], release: int) -> None:
        self._keys = keys
        self._release = release

    def announced(self) -> PublicKey | None:
        return self._keys[0].public

    def evidence(self, public: PublicKey) -> KeyEvidence:
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
    """Answer of GET /key. Raises Retryable while there is no key."""
    public = custody.announced()
    if public is None:
        raise unminted()
    return AnnouncedKey(public, custody.evidence(public), int(clock()))
