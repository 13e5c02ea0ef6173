"""Routes for providers' signed requests: ops, the simulation of a claim, and asks."""

from typing import assert_never

import attrs

from common.api import limits, providers
from common.api.fields import ADDRESS, BYTES32, body_field, object_example
from common.api.member_texts import MEMBER_TEXTS
from common.api.shapes import OMITTED
from common.artifacts import decode_error_name
from common.scalars import hex_of
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.events.progress_hub import ProgressHub
from coordinatord.api.events.routes import PREFER_HEADERS, RESPOND_ASYNC, STORED_REPLY, stored_response
from coordinatord.api.provider_ops import asks, ops
from coordinatord.api.provider_ops.asks import AskPublisher, AsksBody
from coordinatord.api.provider_ops.ops import OP_CLASSES, OpService, read_op
from coordinatord.base.outcomes import PredictedRefusal, SessionRow, Unauthorised
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.relayer.outbox_sql import QueuedRelay
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy
from coordinatord.http import relay_responses, responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    CHAIN_REPLIES,
    RELAY_REPLIES,
    STORE_REPLIES,
    Body,
    Reply,
    Request,
    Route,
    chain_refusal_replies,
    malformed_replies,
)


def op_response(outcome: ops.OpOutcome) -> Response:
    match outcome:
        case ops.OpMined():
            mined, cid = outcome.relay, outcome.result_cid if outcome.result_cid is not None else OMITTED
            body = providers.OpDoneShape(hex_of(mined.tx_hash), "success", str(mined.block_number), cid)
            return responses.ok(body, status=201)
        case RefusedByChain():
            return _op_refusal_response(outcome.name, outcome.raw)
        case PredictedRefusal():
            return _op_refusal_response(outcome.name, b"")
        case Unauthorised():
            return relay_responses.unauthorised_response(outcome)
        case RelayBusy():
            return relay_responses.relay_busy_response()
        case ops.OpUnderWay():
            return relay_responses.receipt_timeout_response(outcome.tx_hash, outcome.poll)
        case _:
            assert_never(outcome)


def _op_refusal_response(name: str | None, raw: bytes) -> Response:
    body = providers.OpRefused(ok=False, reason=name or "unknown", raw=OMITTED if name is not None else hex_of(raw))
    return responses.not_retryable(409, body)


def publish_response(outcome: asks.PublishOutcome) -> Response:
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
        case Unauthorised():
            return relay_responses.unauthorised_response(outcome)
        case RefusedByChain() | RelayBusy() | NoReceipt():
            return relay_responses.relay_failure_response(outcome, "GET /evm/asks")
        case _:
            assert_never(outcome)


@attrs.frozen(slots=True)
class SimulateBody:
    job_id: bytes = body_field(BYTES32)
    address: bytes = body_field(ADDRESS, "the provider's wallet", example=MEMBER_TEXTS["operator"].example)


def _examples() -> dict[str, object]:
    return {op: object_example(shape, "result_cid") for op, shape in OP_CLASSES.items()}


@attrs.frozen(slots=True)
class ProviderOpRoutes:
    ops: OpService
    asks: AskPublisher
    registry: JobRegistry
    posted_jobs: PostedJobs
    progress: ProgressHub

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/evm/ops",
                id="runOp",
                tag="Provider operations",
                about="Submit a signed op: claim, settle or fail a job, publish an identity, or request capacity",
                details=(
                    "The signature authorises the op, so any session may submit it. The op is simulated and sent, and"
                    " the answer comes when it is mined. `issued_at` of `claim`, `settle` and `fail` must be within 600"
                    " s of now. `issued_at` of `set_identity` and `request_capacity` must be greater than in the last"
                    " such op. A repeated op joins the pending op."
                ),
                handler=self.run_op,
                headers=PREFER_HEADERS,
                body=Body.any_of(list(OP_CLASSES.values()), read_op, _examples, limits.MAX_ORDER_BODY_BYTES),
                session=True,
                replies=(
                    Reply(201, shape=providers.OpDoneShape, about="The op is mined"),
                    STORED_REPLY,
                    *malformed_replies("result_required", "result_ambiguous", "unknown_result"),
                    Reply(401, "invalid_session"),
                    Reply(403, "invalid_op_signature"),
                    Reply(409, shape=providers.OpRefused, about="The chain refuses the op, so nothing took effect"),
                    *RELAY_REPLIES,
                    *STORE_REPLIES,
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
                details="Nothing is sent to the chain. Payment, signature and time are not checked.",
                handler=self.simulate_claim,
                body=Body.of(SimulateBody),
                replies=(
                    Reply(200, shape=providers.ClaimAccepted, about="The chain would accept the claim"),
                    Reply(200, shape=providers.ClaimRefused, about="The chain would refuse the claim, and why"),
                    *malformed_replies(),
                    *CHAIN_REPLIES,
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
                    "Sets prices by model and window. Two zero rates withdraw a price. Other prices do not change. The"
                    " answer comes when the transaction is mined."
                ),
                handler=self.publish_asks,
                body=Body.of(AsksBody, limits.MAX_ASKS_BODY_BYTES),
                session=True,
                replies=(
                    Reply(200, shape=providers.PublishedShape, about="The prices are published"),
                    *malformed_replies(),
                    Reply(401, "invalid_session"),
                    Reply(403, "invalid_signature"),
                    Reply(403, "not_registered"),
                    Reply(403, "provider_mismatch"),
                    Reply(409, "stale_snapshot"),
                    Reply(409, "superseded"),
                    *chain_refusal_replies("asks"),
                    *RELAY_REPLIES,
                    Reply(503, "publication_skipped"),
                    Reply(503, "provider_id_read"),
                    Reply(503, "registry_floor_read"),
                ),
            ),
        ]

    async def run_op(self, request: Request) -> Response:
        op: ops.ProviderOp = request.body
        outcome = await self.ops.run_op(op, _require_session(request).address, wait=not request.prefers(RESPOND_ASYNC))
        if isinstance(outcome, QueuedRelay):
            return await stored_response(self.progress, outcome.relay.subject)
        return op_response(outcome)

    async def simulate_claim(self, request: Request) -> Response:
        body: SimulateBody = request.body
        job = await self.posted_jobs.find(body.job_id, "claim_simulate_read")
        if job is None:
            return responses.ok(providers.ClaimRefused(ok=False, reason="UnknownJob"))
        selector = await self.registry.read_claim_refusal(job.posted, body.address)
        if not any(selector):
            return responses.ok(providers.ClaimAccepted(ok=True))
        return responses.ok(providers.ClaimRefused(ok=False, reason=decode_error_name(selector) or "unknown"))

    async def publish_asks(self, request: Request) -> Response:
        return publish_response(await self.asks.publish_snapshot(request.body))


def _require_session(request: Request) -> SessionRow:
    if request.session is None:
        raise AssertionError("the route requires a session")
    return request.session
