"""Custody of escrow keys: announce one key, open the wrapped seeds of orders with any key, and provide evidence."""

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
    """Evidence that an escrow publishes for a key."""

    type: str
    report_data: bytes
    debug: bool
    release: int


@attrs.frozen(slots=True)
class DevelopmentEvidence(KeyEvidence):
    """Evidence of a development instance. A production instance would have evidence signed by its hardware."""

    measurement: bytes
    tcb: str
    quote: str


@attrs.frozen(slots=True)
class AnnouncedKey:
    """Response of GET /key."""

    public: PublicKey
    evidence: KeyEvidence
    issued_at: int


def static_evidence(public: PublicKey, release: int) -> KeyEvidence:
    return KeyEvidence(escrow_evidence.STATIC_EVIDENCE_TYPE, report_data(public), debug=False, release=release)


def mock_evidence(public: PublicKey, release: int) -> DevelopmentEvidence:
    """Return mock evidence. The quote only repeats measurement and report_data, and proves nothing."""
    measurement, bound_data = mock_measurement(release), report_data(public)
    return DevelopmentEvidence(
        escrow_evidence.MOCK_EVIDENCE_TYPE,
        bound_data,
        debug=False,
        release=release,
        measurement=measurement,
        tcb="mock",
        quote=base64_of(measurement + bound_data),
    )


def no_key_error() -> Retryable:
    """Return the error of an instance that has not received a key yet."""
    return Retryable("not_ready", "this escrow has no keys yet; try again", "escrow_key_unminted", retry_after=1)


class Custody(Protocol):
    def current_key(self) -> PublicKey | None:
        """Return the key that new orders are sealed to, or None before the first key."""

    def build_evidence(self, public: PublicKey) -> KeyEvidence:
        """Return evidence for a key of this escrow."""

    async def open_wrap(self, seed_wrap: bytes) -> bytearray | None:
        """Return the seed that is sealed in a wrap, or None if no key opens the wrap. The caller must wipe the seed."""

    async def has_lost_keys(self) -> bool:
        """Return True when a wrap that does not open may have been sealed to a lost key of this escrow."""

    async def acquire_first_key(self) -> None:
        """Acquire the first key, before serving. Raise Fatal or Retryable on failure."""

    async def run(self) -> None:
        """Rotate, pull and erase keys in the background, until cancelled."""

    def wipe_keys(self) -> None:
        """Wipe every key."""


class StaticCustody:
    """Keys from the operator's settings. The first key is announced, every key opens wraps, and a restart loses no
    key."""

    def __init__(self, keys: tuple[KeyPair, ...], release: int) -> None:
        self._keys = keys
        self._release = release

    def current_key(self) -> PublicKey | None:
        return self._keys[0].public

    def build_evidence(self, public: PublicKey) -> KeyEvidence:
        return static_evidence(public, self._release)

    async def open_wrap(self, seed_wrap: bytes) -> bytearray | None:
        return open_with_any(self._keys, seed_wrap)

    async def has_lost_keys(self) -> bool:
        return False

    async def acquire_first_key(self) -> None:
        """Do nothing: the keys come from the settings."""

    async def run(self) -> None:
        """Do nothing: static keys never change."""

    def wipe_keys(self) -> None:
        for key in self._keys:
            key.erase()


def announced_key(custody: Custody, clock: Clock) -> AnnouncedKey:
    """Return the response of GET /key. Raise Retryable before the first key."""
    public = custody.current_key()
    if public is None:
        raise no_key_error()
    return AnnouncedKey(public, custody.build_evidence(public), int(clock()))
