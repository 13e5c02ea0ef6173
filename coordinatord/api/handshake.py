"""The session handshake."""

import attrs

from coordinatord.api import answers, views
from coordinatord.api.answers import Answer
from coordinatord.api.routes import CHAIN, Body, Parameter, Reply, Request, Route, malformed
from coordinatord.fields import ADDRESS
from coordinatord.service.sessions import SessionBody, Sessions


@attrs.frozen(slots=True)
class Handshake:
    sessions: Sessions
    chain_id: int

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/auth/nonce",
                about="A nonce for an address, to be signed within 300 seconds",
                handler=self.nonce,
                query={"address": Parameter(ADDRESS, required=True)},
                replies=(Reply(200, shape=views.Nonce), *malformed()),
            ),
            Route(
                method="POST",
                path="/auth/session",
                about="A bearer token for a signed nonce",
                handler=self.session,
                body=Body.of(SessionBody),
                replies=(
                    Reply(200, shape=views.Session),
                    *malformed(),
                    Reply(401, "invalid_signature"),
                    Reply(403, "not_registered"),
                    *CHAIN,
                    Reply(503, "provider_id_read"),
                ),
            ),
        ]

    async def nonce(self, request: Request) -> Answer:
        issued = await self.sessions.issue_nonce(request.query["address"], request.caller)
        return answers.ok_private(views.Nonce(issued.nonce, issued.expires_at, self.chain_id))

    async def session(self, request: Request) -> Answer:
        return answers.session_opened(await self.sessions.open(request.body))
