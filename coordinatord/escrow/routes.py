"""The escrow's routes: its key, the release of a payload key, the handing over of keys to a peer."""

from collections.abc import Mapping
from typing import Annotated, Final, assert_never

import attrs
import msgspec
from msgspec import Meta

from common import escrow as escrow_evidence
from common.scalars import base64_of
from common.wire.shapes import ErrorType
from coordinatord.base.clock import Clock
from coordinatord.escrow import custody as evidence_values
from coordinatord.escrow import handover, release
from coordinatord.escrow.custody import AnnouncedKey, KeyEvidence, announced_key
from coordinatord.escrow.handover import HandoverBody
from coordinatord.escrow.hosting import Escrow
from coordinatord.escrow.release import ReleaseBody, Releases
from coordinatord.http import responses
from coordinatord.http.responses import Answer
from coordinatord.http.routing import CHAIN, KIB, Body, Reply, Request, Route, malformed

# The bodies of the escrow's answers. Its keys and hashes are written without 0x, as the specification has them.

BareBytes32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]


class StaticEvidence(msgspec.Struct, tag_field="type", tag=escrow_evidence.STATIC):
    report_data: BareBytes32
    debug: bool
    release: int


class MockEvidence(msgspec.Struct, tag_field="type", tag=escrow_evidence.MOCK):
    report_data: BareBytes32
    debug: bool
    release: int
    measurement: BareBytes32
    tcb: str
    quote: Base64


class Key(msgspec.Struct):
    escrow_public_key: BareBytes32
    evidence: StaticEvidence | MockEvidence
    issued_at: int


class Released(msgspec.Struct):
    dek_sealed: Base64


class HandedOver(msgspec.Struct):
    keys_sealed: Base64
    key_count: int
    holder_release: int


def key(announced: AnnouncedKey) -> Key:
    return Key(announced.public.raw.hex(), _evidence(announced.evidence), announced.issued_at)


def _evidence(evidence: KeyEvidence) -> StaticEvidence | MockEvidence:
    bound = evidence.report_data.hex()
    if isinstance(evidence, evidence_values.DevelopmentEvidence):
        return MockEvidence(
            bound, evidence.debug, evidence.release, evidence.measurement.hex(), evidence.tcb, evidence.quote
        )
    return StaticEvidence(bound, evidence.debug, evidence.release)


# Statuses and bodies of the outcomes of the escrow's routes.


def escrow_unavailable() -> Answer:
    return responses.error(403, "invalid_request_error", "this coordinator hosts no escrow", code="escrow_unavailable")


def handover_disabled() -> Answer:
    message = "the keys of this escrow are its operator's and are not handed over"
    return responses.error(403, "invalid_request_error", message, code="escrow_handover_disabled")


_NOT_RELEASED: Final[Mapping[release.Reason, tuple[int, ErrorType]]] = {
    "stale_issued_at": (400, "invalid_request_error"),
    "wrong_wallet": (403, "authentication_error"),
    "no_claim": (404, "not_found"),
    "not_claimed": (409, "invalid_request_error"),
    "wrap_mismatch": (400, "invalid_request_error"),
    "unseal_failed": (400, "invalid_request_error"),
    "escrow_key_lost": (410, "not_found"),
}


def released(outcome: release.ReleaseOutcome) -> Answer:
    match outcome:
        case release.ReleasedKey():
            return responses.ok_private(Released(base64_of(outcome.dek_sealed)))
        case release.NotReleased():
            status, kind = _NOT_RELEASED[outcome.reason]
            return responses.error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)


_NOT_HANDED_OVER: Final[Mapping[handover.Reason, tuple[int, ErrorType]]] = {
    "stale_issued_at": (400, "invalid_request_error"),
    "bad_binding": (400, "invalid_request_error"),
    "debug_evidence": (403, "invalid_request_error"),
    "stale_release": (403, "invalid_request_error"),
    "bad_operator_signature": (403, "authentication_error"),
    "operator_not_authorized": (403, "authentication_error"),
    "not_allowlisted": (403, "invalid_request_error"),
    "tombstoned": (403, "invalid_request_error"),
}


def handed_over(outcome: handover.HandoverOutcome) -> Answer:
    match outcome:
        case handover.GrantedHandover():
            body = HandedOver(base64_of(outcome.keys_sealed), outcome.key_count, outcome.holder_release)
            return responses.ok_private(body)
        case handover.NotHandedOver():
            status, kind = _NOT_HANDED_OVER[outcome.reason]
            return responses.error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)


_RELEASE_LIMIT = 2 * KIB
_HANDOVER_LIMIT = 4 * KIB
_NOT_HERE = Reply(403, "escrow_unavailable")


@attrs.frozen(slots=True)
class Hosted:
    """What an escrow that is hosted here is asked through."""

    escrow: Escrow
    releases: Releases
    clock: Clock


@attrs.frozen(slots=True)
class EscrowRoutes:
    """The same routes whatever the mode: without an escrow they say that there is none, whatever they are sent."""

    hosted: Hosted | None

    def routes(self) -> list[Route]:
        hosted = self.hosted
        hands_over = hosted is not None and hosted.escrow.handing is not None
        return [
            Route(
                method="GET",
                path="/key",
                about="The key that open orders are sealed to, with its evidence",
                handler=self.key,
                replies=(Reply(200, shape=Key), _NOT_HERE, Reply(503, "escrow_key_unminted")),
            ),
            Route(
                method="POST",
                path="/release",
                about="A claimed job's payload key, for the provider that holds the claim",
                handler=self.release,
                body=_anything(_RELEASE_LIMIT) if hosted is None else Body.of(ReleaseBody, _RELEASE_LIMIT),
                replies=(
                    Reply(200, shape=Released),
                    *malformed("stale_issued_at", "bad_container", "wrap_mismatch", "unseal_failed"),
                    _NOT_HERE,
                    Reply(403, "wrong_wallet"),
                    Reply(404, "no_claim"),
                    Reply(409, "not_claimed"),
                    Reply(410, "escrow_key_lost"),
                    *CHAIN,
                    Reply(503, "job_read"),
                    Reply(503, "provider_id_read"),
                    Reply(503, "escrow_key_unminted"),
                ),
            ),
            Route(
                method="POST",
                path="/handover",
                about="The held keys, for a peer instance",
                handler=self.handover,
                body=Body.of(HandoverBody, _HANDOVER_LIMIT) if hands_over else _anything(_HANDOVER_LIMIT),
                replies=(
                    Reply(200, shape=HandedOver),
                    *malformed("stale_issued_at", "bad_binding"),
                    _NOT_HERE,
                    Reply(403, "escrow_handover_disabled"),
                    Reply(403, "debug_evidence"),
                    Reply(403, "stale_release"),
                    Reply(403, "bad_operator_signature"),
                    Reply(403, "operator_not_authorized"),
                    Reply(403, "not_allowlisted"),
                    Reply(403, "tombstoned"),
                    *CHAIN,
                    Reply(503, "allowlist_status_read"),
                    Reply(503, "escrow_key_unminted"),
                ),
            ),
        ]

    async def key(self, _: Request) -> Answer:
        if self.hosted is None:
            return escrow_unavailable()
        return responses.ok(key(announced_key(self.hosted.escrow.custody, self.hosted.clock)))

    async def release(self, request: Request) -> Answer:
        if self.hosted is None:
            return escrow_unavailable()
        return released(await self.hosted.releases.release(request.body))

    async def handover(self, request: Request) -> Answer:
        if self.hosted is None:
            return escrow_unavailable()
        handing = self.hosted.escrow.handing
        if handing is None:
            return handover_disabled()
        return handed_over(await handing.hand_over(request.body))


def _anything(limit: int) -> Body:
    """A body that is not looked into: any JSON object of the route's size."""
    return Body(limit, lambda values: values, lambda: {"type": "object"})
