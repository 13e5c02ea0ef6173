"""Routes of the escrow: its key, the release of a payload key, and the handover of keys to a peer."""

from collections.abc import Mapping
from typing import Any, Final, assert_never

import attrs

from common.api import limits
from common.api.error_bodies import ErrorType
from common.api.escrow import HandedOverShape, Key, MockEvidenceShape, PublishedEvidence, ReleasedShape, StaticEvidence
from common.scalars import base64_of
from coordinatord.api.escrow import custody, handover, release
from coordinatord.api.escrow.custody import AnnouncedKey, KeyEvidence, announced_key
from coordinatord.api.escrow.handover import HandoverBody
from coordinatord.api.escrow.hosting import Escrow
from coordinatord.api.escrow.release import ReleaseBody, ReleaseService
from coordinatord.base.clock import Clock
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import CHAIN_REPLIES, Body, Reply, Request, Route, malformed_replies


def key_shape(announced: AnnouncedKey) -> Key[PublishedEvidence]:
    return Key(announced.public.raw.hex(), _evidence_shape(announced.evidence), announced.issued_at)


def _evidence_shape(evidence: KeyEvidence) -> PublishedEvidence:
    bound_data = evidence.report_data.hex()
    if isinstance(evidence, custody.DevelopmentEvidence):
        return MockEvidenceShape(
            bound_data, evidence.debug, evidence.release, evidence.measurement.hex(), evidence.tcb, evidence.quote
        )
    return StaticEvidence(bound_data, evidence.debug, evidence.release)


def escrow_unavailable_response() -> Response:
    return responses.error(403, "invalid_request_error", "this coordinator hosts no escrow", code="escrow_unavailable")


def handover_disabled_response() -> Response:
    message = "this escrow uses its operator's keys and does not hand them over"
    return responses.error(403, "invalid_request_error", message, code="escrow_handover_disabled")


_RELEASE_REFUSALS: Final[Mapping[release.ReleaseRefusalReason, tuple[int, ErrorType]]] = {
    "stale_issued_at": (400, "invalid_request_error"),
    "wrong_wallet": (403, "authentication_error"),
    "no_claim": (404, "not_found"),
    "not_claimed": (409, "invalid_request_error"),
    "wrap_mismatch": (400, "invalid_request_error"),
    "unseal_failed": (400, "invalid_request_error"),
    "escrow_key_lost": (410, "not_found"),
}


def release_response(outcome: release.ReleaseOutcome) -> Response:
    match outcome:
        case release.GrantedRelease():
            return responses.ok_no_store(ReleasedShape(base64_of(outcome.dek_sealed)))
        case release.NotReleased():
            status, kind = _RELEASE_REFUSALS[outcome.reason]
            return responses.error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)


_HANDOVER_REFUSALS: Final[Mapping[handover.HandoverRefusalReason, tuple[int, ErrorType]]] = {
    "stale_issued_at": (400, "invalid_request_error"),
    "bad_binding": (400, "invalid_request_error"),
    "debug_evidence": (403, "invalid_request_error"),
    "stale_release": (403, "invalid_request_error"),
    "bad_operator_signature": (403, "authentication_error"),
    "operator_not_authorized": (403, "authentication_error"),
    "not_allowlisted": (403, "invalid_request_error"),
    "tombstoned": (403, "invalid_request_error"),
}


def handover_response(outcome: handover.HandoverOutcome) -> Response:
    match outcome:
        case handover.GrantedHandover():
            body = HandedOverShape(base64_of(outcome.keys_sealed), outcome.key_count, outcome.holder_release)
            return responses.ok_no_store(body)
        case handover.NotHandedOver():
            status, kind = _HANDOVER_REFUSALS[outcome.reason]
            return responses.error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)


_NO_ESCROW = Reply(403, "escrow_unavailable")


@attrs.frozen(slots=True)
class EscrowServices:
    """Services of an escrow that this coordinator hosts."""

    escrow: Escrow
    releases: ReleaseService
    clock: Clock


@attrs.frozen(slots=True)
class EscrowRoutes:
    """Routes of the escrow. If this coordinator hosts no escrow, every request gets `escrow_unavailable`."""

    services: EscrowServices | None

    def routes(self) -> list[Route]:
        hosted = self.services
        hands_over = hosted is not None and hosted.escrow.handover is not None
        return [
            Route(
                method="GET",
                path="/key",
                id="getEscrowKey",
                tag="Escrow",
                about="Read the key that open orders are sealed to, with its evidence",
                details="Compute `report_data` from the key before you seal to the key. Do not seal if it differs.",
                handler=self.read_key,
                replies=(
                    Reply(200, shape=Key[PublishedEvidence], about="The key"),
                    _NO_ESCROW,
                    Reply(503, "escrow_key_unminted"),
                ),
            ),
            Route(
                method="POST",
                path="/release",
                id="releaseKey",
                tag="Escrow",
                about="Release a claimed job's payload key to the provider that holds the claim",
                details=(
                    "No session is needed. The job must be claimed, `seed_wrap` and `ct_hash` must reproduce its"
                    " commitment, and the signature must be of the wallet that claimed it. Fail a job that cannot be"
                    " opened within 300 s of its claim."
                ),
                handler=self.release,
                body=_declare_body(ReleaseBody, limits.MAX_RELEASE_BODY_BYTES, is_open=hosted is not None),
                replies=(
                    Reply(200, shape=ReleasedShape, about="The sealed payload key"),
                    *malformed_replies("stale_issued_at", "bad_container", "wrap_mismatch", "unseal_failed"),
                    _NO_ESCROW,
                    Reply(403, "wrong_wallet"),
                    Reply(404, "no_claim"),
                    Reply(409, "not_claimed"),
                    Reply(410, "escrow_key_lost"),
                    *CHAIN_REPLIES,
                    Reply(503, "rpc_internal"),
                    Reply(503, "job_read"),
                    Reply(503, "provider_id_read"),
                    Reply(503, "escrow_key_unminted"),
                ),
            ),
            Route(
                method="POST",
                path="/handover",
                id="handOverKeys",
                tag="Escrow",
                about="Hand over the escrow keys to a peer instance",
                details="For instances of one development escrow. Any other coordinator answers 403.",
                handler=self.handover,
                body=_declare_body(HandoverBody, limits.MAX_HANDOVER_BODY_BYTES, is_open=hands_over),
                replies=(
                    Reply(200, shape=HandedOverShape, about="The keys"),
                    *malformed_replies("stale_issued_at", "bad_binding"),
                    _NO_ESCROW,
                    Reply(403, "escrow_handover_disabled"),
                    Reply(403, "debug_evidence"),
                    Reply(403, "stale_release"),
                    Reply(403, "bad_operator_signature"),
                    Reply(403, "operator_not_authorized"),
                    Reply(403, "not_allowlisted"),
                    Reply(403, "tombstoned"),
                    *CHAIN_REPLIES,
                    Reply(503, "allowlist_status_read"),
                    Reply(503, "escrow_key_unminted"),
                ),
            ),
        ]

    async def read_key(self, _: Request) -> Response:
        if self.services is None:
            return escrow_unavailable_response()
        return responses.ok(key_shape(announced_key(self.services.escrow.custody, self.services.clock)))

    async def release(self, request: Request) -> Response:
        if self.services is None:
            return escrow_unavailable_response()
        return release_response(await self.services.releases.release(request.body))

    async def handover(self, request: Request) -> Response:
        if self.services is None:
            return escrow_unavailable_response()
        service = self.services.escrow.handover
        if service is None:
            return handover_disabled_response()
        return handover_response(await service.hand_over(request.body))


def _declare_body(shape: type[Any], limit: int, *, is_open: bool) -> Body:
    """Return the declaration of a body. If the route is not open, the declaration accepts any JSON object within the
    limit, so that the route answers every request with 403."""
    body = Body.of(shape, limit)
    return body if is_open else attrs.evolve(body, read=lambda values: values)
