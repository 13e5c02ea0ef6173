"""Routes of the sign-in: get a nonce, and open a session with its signature."""

from typing import assert_never

import attrs

from common.api.chain import Nonce, SessionShape
from common.api.fields import ADDRESS
from common.api.shapes import OMITTED
from coordinatord.api.sessions import sessions
from coordinatord.api.sessions.sessions import SessionBody, SessionService
from coordinatord.base.outcomes import Unauthorised
from coordinatord.http import relay_responses, responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import CHAIN_REPLIES, Body, Parameter, Reply, Request, Route, malformed_replies


def session_response(outcome: sessions.SignInOutcome) -> Response:
    match outcome:
        case sessions.OpenedSession():
            provider_id = outcome.provider_id if outcome.provider_id is not None else OMITTED
            return responses.ok_no_store(SessionShape(outcome.token, outcome.expires_at, provider_id))
        case Unauthorised(code="not_registered"):
            return relay_responses.unauthorised_response(outcome)
        case Unauthorised():
            return relay_responses.unauthorised_response(outcome, status=401)
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
                about="Get a nonce for an address to sign",
                details=(
                    "Use the nonce once, within 300 s. An address has at most 16 nonces. Another nonce replaces the"
                    " oldest."
                ),
                handler=self.issue_nonce,
                query={"address": Parameter(ADDRESS, "wallet that will sign", required=True)},
                replies=(Reply(200, shape=Nonce, about="A nonce"), *malformed_replies()),
            ),
            Route(
                method="POST",
                path="/auth/session",
                id="openSession",
                tag="Sessions",
                about="Open a session: a bearer token for a signed nonce",
                details=(
                    "Sign SvcSession over (address, nonce), with the nonce as text, in the domain `SVC Session` with"
                    " the `chain_id` that came with the nonce. A session lasts 24 hours. An address has at most 32"
                    " sessions. Another session ends the oldest. Role `provider` binds the session to the wallet's"
                    " provider id, which polls need."
                ),
                handler=self.open_session,
                body=Body.of(SessionBody),
                replies=(
                    Reply(200, shape=SessionShape, about="The session"),
                    *malformed_replies(),
                    Reply(401, "invalid_signature"),
                    Reply(403, "not_registered"),
                    *CHAIN_REPLIES,
                    Reply(503, "provider_id_read"),
                ),
            ),
        ]

    async def issue_nonce(self, request: Request) -> Response:
        issued = await self.sessions.issue_nonce(request.query["address"], request.caller)
        return responses.ok_no_store(Nonce(issued.nonce, issued.expires_at, self.chain_id))

    async def open_session(self, request: Request) -> Response:
        return session_response(await self.sessions.open(request.body))
