"""Routes for providers' signed requests: ops, the simulation of a claim, and asks."""

from typing import assert_never

import attrs

from common.api import limits, providers
from common.api.fields import ADDRESS, BYTES32, object_example, wire
from common.api.shapes import OMITTED
from common.api.words import WORDS
from common.artifacts import decode_error
from common.scalars import hex_of
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.events.routes import PREFER, RESPOND_ASYNC, STORED, BeforeBlocks
from coordinatord.api.provider_ops import asks, ops
from coordinatord.api.provider_ops.asks import Asks, AsksBody
from coordinatord.api.provider_ops.ops import OPS, Ops, read_op
from coordinatord.base.outcomes import NotSigned, SessionRow, WouldRefuse
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.relayer.outbox_sql import Queued
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy
from coordinatord.http import relay_responses, responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    CHAIN,
    RELAY,
    STORE,
    Body,
    Reply,
    Request,
    Route,
    malformed,
    refused_by_chain,
)


def op_ended(outcome: ops.OpOutcome) -> Response:
    match outcome:
        case ops.OpMined():
            mined, cid = outcome.mined, outcome.result_cid if outcome.result_cid is not None else OMITTED
            body = providers.OpDoneShape(hex_of(mined.tx_hash), "success", str(mined.block_number), cid)
            return responses.ok(body, status=201)
        case RefusedByChain():
            return _op_refused(outcome.name, outcome.raw)
        case WouldRefuse():
            return _op_refused(outcome.name, b"")
        case NotSigned():
            return relay_responses.not_signed(outcome)
        case RelayBusy():
            return relay_responses.busy()
        case ops.OpUnderWay():
            return relay_responses.receipt_timeout(outcome.tx_hash, outcome.poll)
        case _:
            assert_never(outcome)


def _op_refused(name: str | None, raw: bytes) -> Response:
    body = providers.OpRefused(ok=False, reason=name or "unknown", raw=OMITTED if name is not None else hex_of(raw))
    return responses.final(409, body)


def asks_published(outcome: asks.PublishOutcome) -> Response:
    match outcome:
        case asks.PublishedSnapshot():
            body = providers.PublishedShape(
                str(outcome.provider_id), str(outcome.signed_at), True, hex_of(outcome.tx_hash)
            )
            return responses.ok(body)
        case asks.StaleSnapshot(superseded=True):
            return responses.error(
                409, "invalid_request_error", "a newer snapshot is on the chain already", code="superseded"
            )
        case asks.StaleSnapshot():
            message = "signed_at is not newer than the provider's latest snapshot"
            return responses.error(
                409, "invalid_request_error", message, param="snapshot.signed_at", code="stale_snapshot"
            )
        case NotSigned():
            return relay_responses.not_signed(outcome)
        case RefusedByChain() | RelayBusy() | NoReceipt():
            return relay_responses.relayed(outcome, "GET /evm/asks")
        case _:
            assert_never(outcome)


@attrs.frozen(slots=True)
class SimulateBody:
    job_id: bytes = wire(BYTES32)
    address: bytes = wire(ADDRESS, "the provider's wallet", example=WORDS["operator"].example)


def _examples() -> dict[str, object]:
    return {op: object_example(shape, "result_cid") for op, shape in OPS.items()}


@attrs.frozen(slots=True)
class OperationRoutes:
    ops: Ops
    asks: Asks
    registry: JobRegistry
    posted: PostedJobs
    before_blocks: BeforeBlocks

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/evm/ops",
                id="runOp",
                tag="Provider operations",
                about="Submit a signed op: claim, settle or fail a job, publish an identity, or request capacity",
                details=(
                    "The signature is the authority, the session may be any address's. The op is tried on the chain,"
                    " sent, and waited for. `claim`, `settle` and `fail` are signed with an `issued_at` within 600 s of"
                    " now; `set_identity` and `request_capacity` with one greater than the last. The same op again"
                    " joins the one under way."
                ),
                handler=self.run,
                headers=PREFER,
                body=Body.any_of(list(OPS.values()), read_op, _examples, limits.ORDER_BODY_BYTES),
                session=True,
                replies=(
                    Reply(201, shape=providers.OpDoneShape, about="The op is mined"),
                    STORED,
                    *malformed("result_required", "result_ambiguous", "unknown_result"),
                    Reply(401, "invalid_session"),
                    Reply(403, "invalid_op_signature"),
                    Reply(409, shape=providers.OpRefused, about="The chain refuses the op: nothing took effect"),
                    *RELAY,
                    *STORE,
                    Reply(503, "provider_id_read"),
                    Reply(503, "claim_simulate_read"),
                    Reply(503, "job_read"),
                ),
            ),
            Route(
                method="POST",
                path="/evm/simulate/claim",
                id="simulateClaim",
                tag="Provider operations",
                about="Check whether the chain would accept this provider's claim of this job",
                details="Costs nothing. Payment, signature and time are not looked at.",
                handler=self.simulate_claim,
                body=Body.of(SimulateBody),
                replies=(
                    Reply(200, shape=providers.ClaimAccepted, about="It would"),
                    Reply(200, shape=providers.ClaimRefused, about="It would not, and why"),
                    *malformed(),
                    *CHAIN,
                    Reply(503, "rpc_internal"),
                    Reply(503, "claim_simulate_read"),
                ),
            ),
            Route(
                method="PUT",
                path="/evm/asks",
                id="publishAsks",
                tag="Provider operations",
                about="Publish a provider's signed prices",
                details=(
                    "Prices by model and window; both rates 0 withdraw one, those not named stay as they are. Answered"
                    " when the transaction is mined."
                ),
                handler=self.publish,
                body=Body.of(AsksBody, limits.ASKS_BODY_BYTES),
                session=True,
                replies=(
                    Reply(200, shape=providers.PublishedShape, about="The prices are published"),
                    *malformed(),
                    Reply(401, "invalid_session"),
                    Reply(403, "invalid_signature"),
                    Reply(403, "not_registered"),
                    Reply(403, "provider_mismatch"),
                    Reply(409, "stale_snapshot"),
                    Reply(409, "superseded"),
                    *refused_by_chain("asks"),
                    *RELAY,
                    Reply(503, "publication_skipped"),
                    Reply(503, "provider_id_read"),
                    Reply(503, "registry_floor_read"),
                ),
            ),
        ]

    async def run(self, request: Request) -> Response:
        op: ops.ProviderOp = request.body
        outcome = await self.ops.run(op, _session(request).address, wait=not request.prefers(RESPOND_ASYNC))
        if isinstance(outcome, Queued):
            return await self.before_blocks.stored(outcome.relay.subject)
        return op_ended(outcome)

    async def simulate_claim(self, request: Request) -> Response:
        body: SimulateBody = request.body
        job = await self.posted.find(body.job_id, "claim_simulate_read")
        if job is None:
            return responses.ok(providers.ClaimRefused(ok=False, reason="UnknownJob"))
        selector = await self.registry.claim_refusal(job.posted, body.address)
        if not any(selector):
            return responses.ok(providers.ClaimAccepted(ok=True))
        return responses.ok(providers.ClaimRefused(ok=False, reason=decode_error(selector) or "unknown"))

    async def publish(self, request: Request) -> Response:
        return asks_published(await self.asks.publish(request.body))


def _session(request: Request) -> SessionRow:
    if request.session is None:
        raise AssertionError("the route requires a session")
    return request.session
