"""Routes of the session handshake."""

from typing import assert_never

import attrs

from common.api.chain import Nonce, SessionShape
from common.api.fields import ADDRESS
from common.api.shapes import OMITTED
from coordinatord.api.sessions import sessions
from coordinatord.api.sessions.sessions import SessionBody, SessionService
from coordinatord.base.outcomes import NotSigned
from coordinatord.http import relay_responses, responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import CHAIN, Body, Parameter, Reply, Request, Route, malformed


def session_opened(outcome: sessions.SignInOutcome) -> Response:
    match outcome:
        case sessions.OpenedSession():
            provider_id = outcome.provider_id if outcome.provider_id is not None else OMITTED
            return responses.ok_private(SessionShape(outcome.token, outcome.expires_at, provider_id))
        case NotSigned(code="not_registered"):
            return relay_responses.not_signed(outcome)
        case NotSigned():
            return relay_responses.not_signed(outcome, status=401)
        case _:
            assert_never(outcome)


@attrs.frozen(slots=True)
class SessionRoutes:
    sessions: SessionService
    chain_id: int

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/auth/nonce",
                id="getNonce",
                tag="Sessions",
                about="Get a nonce for an address, to be signed",
                details="The nonce is for one use within 300 s. An address holds 16 at most: another drops the oldest.",
                handler=self.nonce,
                query={"address": Parameter(ADDRESS, "wallet that will sign", required=True)},
                replies=(Reply(200, shape=Nonce, about="A nonce"), *malformed()),
            ),
            Route(
                method="POST",
                path="/auth/session",
                id="openSession",
                tag="Sessions",
                about="Open a session: a bearer token for a signed nonce",
                details=(
                    "Signs in with SvcSession over (address, nonce), the nonce signed as the text that it is, in the"
                    " domain `SVC Session` of the `chain_id` that came with it. A session lasts 24 hours; an address"
                    " holds 32, and another ends the oldest. Role `provider` binds it to the wallet's provider id,"
                    " which the poll needs."
                ),
                handler=self.session,
                body=Body.of(SessionBody),
                replies=(
                    Reply(200, shape=SessionShape, about="The session"),
                    *malformed(),
                    Reply(401, "invalid_signature"),
                    Reply(403, "not_registered"),
                    *CHAIN,
                    Reply(503, "provider_id_read"),
                ),
            ),
        ]

    async def nonce(self, request: Request) -> Response:
        issued = await self.sessions.issue_nonce(request.query["address"], request.caller)
        return responses.ok_private(Nonce(issued.nonce, issued.expires_at, self.chain_id))

    async def session(self, request: Request) -> Response:
        return session_opened(await self.sessions.open(request.body))
