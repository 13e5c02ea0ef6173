"""What providers sign: ops, the simulation of a claim, and asks."""

import attrs

from common.artifacts import decode_error
from coordinatord.api import answers, write_views
from coordinatord.api.answers import Answer
from coordinatord.api.routes import CHAIN, KIB, MIB, RELAY, STORE, Body, Reply, Request, Route, malformed
from coordinatord.chain.job_registry import JobRegistry
from coordinatord.fields import ADDRESS, BYTES32, wire
from coordinatord.service.asks import Asks, AsksBody
from coordinatord.service.op_bodies import OPS, read_op
from coordinatord.service.ops import Ops
from coordinatord.service.posted_jobs import PostedJobs
from coordinatord.store.sessions import SessionRow


@attrs.frozen(slots=True)
class SimulateBody:
    job_id: bytes = wire(BYTES32)
    address: bytes = wire(ADDRESS, "the provider's wallet")


@attrs.frozen(slots=True)
class Operations:
    ops: Ops
    asks: Asks
    registry: JobRegistry
    posted: PostedJobs

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/evm/ops",
                about="Relay one signed op of a provider",
                handler=self.run,
                body=Body.any_of(list(OPS.values()), read_op, 20 * MIB),
                session=True,
                replies=(
                    Reply(201, shape=write_views.OpDone),
                    *malformed("result_required", "result_ambiguous", "unknown_result"),
                    Reply(401, "invalid_session"),
                    Reply(403),
                    Reply(409, shape=write_views.OpRefused),
                    *RELAY,
                    *STORE,
                    Reply(503, "provider_id_read"),
                    Reply(503, "claim_simulate_read"),
                    Reply(503, "job_read"),
                    Reply(503, "not_ready"),
                ),
            ),
            Route(
                method="POST",
                path="/evm/simulate/claim",
                about="Whether the chain would let this provider claim this job",
                handler=self.simulate_claim,
                body=Body.of(SimulateBody),
                replies=(
                    Reply(200, shape=write_views.ClaimAccepted),
                    Reply(200, shape=write_views.ClaimRefused),
                    *malformed(),
                    *CHAIN,
                    Reply(503, "claim_simulate_read"),
                    Reply(503, "not_ready"),
                ),
            ),
            Route(
                method="PUT",
                path="/evm/asks",
                about="Publish a provider's signed prices",
                handler=self.publish,
                body=Body.of(AsksBody, 32 * KIB),
                session=True,
                replies=(
                    Reply(200, shape=write_views.Published),
                    *malformed(),
                    Reply(401, "invalid_session"),
                    Reply(403, "invalid_signature"),
                    Reply(403, "not_registered"),
                    Reply(403, "provider_mismatch"),
                    Reply(409, "stale_snapshot"),
                    Reply(409, "superseded"),
                    Reply(409, "contract error"),
                    *RELAY,
                    Reply(503, "publication_skipped"),
                    Reply(503, "provider_id_read"),
                    Reply(503, "registry_floor_read"),
                ),
            ),
        ]

    async def run(self, request: Request) -> Answer:
        return answers.op_ended(await self.ops.run(request.body, _session(request).address))

    async def simulate_claim(self, request: Request) -> Answer:
        body: SimulateBody = request.body
        job = await self.posted.find(body.job_id, "claim_simulate_read")
        if job is None:
            return answers.ok(write_views.ClaimRefused(ok=False, reason="UnknownJob"))
        selector = await self.registry.claim_refusal(job.posted, body.address)
        if not any(selector):
            return answers.ok(write_views.ClaimAccepted(ok=True))
        return answers.ok(write_views.ClaimRefused(ok=False, reason=decode_error(selector) or "unknown"))

    async def publish(self, request: Request) -> Answer:
        return answers.asks_published(await self.asks.publish(request.body))


def _session(request: Request) -> SessionRow:
    if request.session is None:
        raise AssertionError("the route requires a session")
    return request.session
