"""The escrow's routes: its key, the release of a payload key, the handing over of keys to a peer."""

import attrs

from coordinatord.api import answers, escrow_views
from coordinatord.api.answers import Answer
from coordinatord.api.routes import CHAIN, KIB, Body, Reply, Request, Route, malformed
from coordinatord.service.escrow.custody import announced_key
from coordinatord.service.escrow.handing import HandoverBody
from coordinatord.service.escrow.hosting import Escrow
from coordinatord.service.escrow.release import ReleaseBody, Releases
from coordinatord.service.windows import Clock

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
                replies=(Reply(200, shape=escrow_views.Key), _NOT_HERE, Reply(503, "escrow_key_unminted")),
            ),
            Route(
                method="POST",
                path="/release",
                about="A claimed job's payload key, for the provider that holds the claim",
                handler=self.release,
                body=_anything(_RELEASE_LIMIT) if hosted is None else Body.of(ReleaseBody, _RELEASE_LIMIT),
                replies=(
                    Reply(200, shape=escrow_views.Released),
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
                    Reply(200, shape=escrow_views.HandedOver),
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
            return answers.escrow_unavailable()
        return answers.ok(escrow_views.key(announced_key(self.hosted.escrow.custody, self.hosted.clock)))

    async def release(self, request: Request) -> Answer:
        if self.hosted is None:
            return answers.escrow_unavailable()
        return answers.released(await self.hosted.releases.release(request.body))

    async def handover(self, request: Request) -> Answer:
        if self.hosted is None:
            return answers.escrow_unavailable()
        handing = self.hosted.escrow.handing
        if handing is None:
            return answers.handover_disabled()
        return answers.handed_over(await handing.hand_over(request.body))


def _anything(limit: int) -> Body:
    """A body that is not looked into: any JSON object of the route's size."""
    return Body(limit, lambda values: values, lambda: {"type": "object"})
