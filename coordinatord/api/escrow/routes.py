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
from coordinatord.api.escrow.release import ReleaseBody, Releases
from coordinatord.base.clock import Clock
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import CHAIN, Body, Reply, Request, Route, malformed


def key(announced: AnnouncedKey) -> Key[PublishedEvidence]:
    return Key(announced.public.raw.hex(), _evidence(announced.evidence), announced.issued_at)


def _evidence(evidence: KeyEvidence) -> PublishedEvidence:
    bound = evidence.report_data.hex()
    if isinstance(evidence, custody.DevelopmentEvidence):
        return MockEvidenceShape(
            bound, evidence.debug, evidence.release, evidence.measurement.hex(), evidence.tcb, evidence.quote
        )
    return StaticEvidence(bound, evidence.debug, evidence.release)


def escrow_unavailable() -> Response:
    return responses.error(403, "invalid_request_error", "this coordinator hosts no escrow", code="escrow_unavailable")


def handover_disabled() -> Response:
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


def released(outcome: release.ReleaseOutcome) -> Response:
    match outcome:
        case release.GrantedRelease():
            return responses.ok_private(ReleasedShape(base64_of(outcome.dek_sealed)))
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


def handed_over(outcome: handover.HandoverOutcome) -> Response:
    match outcome:
        case handover.GrantedHandover():
            body = HandedOverShape(base64_of(outcome.keys_sealed), outcome.key_count, outcome.holder_release)
            return responses.ok_private(body)
        case handover.NotHandedOver():
            status, kind = _NOT_HANDED_OVER[outcome.reason]
            return responses.error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)


_NOT_HERE = Reply(403, "escrow_unavailable")


@attrs.frozen(slots=True)
class Hosted:
    """Parts of an escrow hosted here."""

    escrow: Escrow
    releases: Releases
    clock: Clock


@attrs.frozen(slots=True)
class EscrowRoutes:
    """Routes of the escrow. Without an escrow, every request gets `escrow_unavailable`."""

    hosted: Hosted | None

    def routes(self) -> list[Route]:
        hosted = self.hosted
        hands_over = hosted is not None and hosted.escrow.handing is not None
        return [
            Route(
                method="GET",
                path="/key",
                id="getEscrowKey",
                tag="Escrow",
                about="Read the key that open orders are sealed to, with its evidence",
                details=(
                    "Compute `report_data` from the key again before you seal to it, and seal to nothing where it"
                    " differs."
                ),
                handler=self.key,
                replies=(
                    Reply(200, shape=Key[PublishedEvidence], about="The key"),
                    _NOT_HERE,
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
                    "The signature and the chain are the authority: the job must be claimed, `seed_wrap` and `ct_hash`"
                    " must reproduce its commitment, and the claimer's wallet must have signed. What cannot be opened"
                    " is to be failed within 300 s of the claim."
                ),
                handler=self.release,
                body=_body(ReleaseBody, limits.RELEASE_BODY_BYTES, looked_into=hosted is not None),
                replies=(
                    Reply(200, shape=ReleasedShape, about="The data key"),
                    *malformed("stale_issued_at", "bad_container", "wrap_mismatch", "unseal_failed"),
                    _NOT_HERE,
                    Reply(403, "wrong_wallet"),
                    Reply(404, "no_claim"),
                    Reply(409, "not_claimed"),
                    Reply(410, "escrow_key_lost"),
                    *CHAIN,
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
                about="Hand the held keys to a peer instance",
                details="Between instances of one development escrow. Others answer 403.",
                handler=self.handover,
                body=_body(HandoverBody, limits.HANDOVER_BODY_BYTES, looked_into=hands_over),
                replies=(
                    Reply(200, shape=HandedOverShape, about="The keys"),
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

    async def key(self, _: Request) -> Response:
        if self.hosted is None:
            return escrow_unavailable()
        return responses.ok(key(announced_key(self.hosted.escrow.custody, self.hosted.clock)))

    async def release(self, request: Request) -> Response:
        if self.hosted is None:
            return escrow_unavailable()
        return released(await self.hosted.releases.release(request.body))

    async def handover(self, request: Request) -> Response:
        if self.hosted is None:
            return escrow_unavailable()
        handing = self.hosted.escrow.handing
        if handing is None:
            return handover_disabled()
        return handed_over(await handing.hand_over(request.body))


def _body(shape: type[Any], limit: int, *, looked_into: bool) -> Body:
    """Return the body's declaration. A closed route accepts any JSON object within the limit, to answer 403 to all."""
    body = Body.of(shape, limit)
    return body if looked_into else attrs.evolve(body, read=lambda values: values)
