"""Routes of health, readiness and the deployment."""

from typing import Any

import attrs

from common.api import chain
from common.api.member_texts import NO_EXAMPLE
from common.api.shapes import OMITTED
from common.scalars import hex_of
from coordinatord.api.system.readiness import ChainState, DeploymentReader, ReadinessCheck, ReadinessReport
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import CHAIN_REPLIES, Reply, Request, Route


def readiness_response(report: ReadinessReport, *, stopping: bool) -> Response:
    """Return the readiness. `reason` describes the index, and `code` names any other cause that prevents readiness."""
    code: Any = "stopping" if stopping else report.fault or OMITTED
    body = chain.ReadinessShape(
        ready=report.ready and code is OMITTED,
        reason=report.reason,
        code=code,
        cursor=_digits(report.cursor),
        head_block=_digits(report.head_block),
        lag=_digits(report.lag),
    )
    # Nothing is wrong with the request, so the body of the 503 is the readiness and not an error.
    return responses.ok(body) if body.ready else responses.retryable(503, body)


def _digits(number: int | None) -> str | None:
    return str(number) if number is not None else None


def deployment_shape(reader: DeploymentReader, state: ChainState) -> chain.DeploymentShape:
    book = reader.address_book
    return chain.DeploymentShape(
        chain_id=book.chain_id,
        contracts=chain.ContractsShape(
            job_registry=hex_of(book.job_registry),
            provider_registry=hex_of(book.provider_registry),
            ask_registry=hex_of(book.ask_registry),
            paytoken=hex_of(book.paytoken),
        ),
        decimals=book.payment_token_decimals,
        token_domain=chain.TokenName(book.token_domain.name, book.token_domain.version),
        gas_price=str(state.gas_price),
        head_block=str(state.head_block),
        block_time_ms=reader.block_time_ms,
        fee_bps=state.terms.fee_bps,
        gas_fee=str(state.terms.gas_fee),
        windows=state.windows if state.windows is not None else OMITTED,
        gateway_url=reader.gateway_url if reader.gateway_url is not None else OMITTED,
    )


@attrs.define(slots=True)
class StopFlag:
    """Flag that is set when the daemon begins to stop. Load balancers then see that the daemon is not ready before its
    connections close."""

    is_set: bool = False


@attrs.frozen(slots=True)
class SystemRoutes:
    readiness: ReadinessCheck
    deployment: DeploymentReader
    stopping: StopFlag

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/healthz",
                id="getHealth",
                tag="Deployment",
                about="Report that the server is running",
                details="Answers as soon as the server listens, independently of the index.",
                handler=self.read_health,
                replies=(Reply(200, shape=chain.HealthShape, about="The server is running"),),
            ),
            Route(
                method="GET",
                path="/readyz",
                id="getReadiness",
                tag="Deployment",
                about="Report whether the index can be read",
                details=(
                    "200 while the index is within READY_LAG_BLOCKS of the chain, otherwise 503 with the same body."
                    " Routes that read the index answer 503 `not_ready` until then; other routes continue."
                ),
                handler=self.read_readiness,
                replies=(
                    Reply(200, shape=chain.ReadinessShape, about="The index is ready", example={"code": NO_EXAMPLE}),
                    Reply(
                        503,
                        shape=chain.ReadinessShape,
                        about="The coordinator is not ready",
                        example={"ready": False, "code": "no_relayer_role"},
                    ),
                ),
            ),
            Route(
                method="GET",
                path="/evm/chain",
                id="getChain",
                tag="Deployment",
                about="Read the deployment, its fees, and the chain as the node sees it now",
                details=(
                    "Compare chain id, contracts and payment token with an address book that you trust before you"
                    " sign anything for them. `fee_bps` and `gas_fee` apply to jobs posted now."
                    " `sla_secs` must be one of `windows`."
                ),
                handler=self.read_chain,
                replies=(
                    Reply(200, shape=chain.DeploymentShape, about="The deployment"),
                    *CHAIN_REPLIES,
                    Reply(503, "config_read"),
                ),
            ),
        ]

    async def read_health(self, _: Request) -> Response:
        return responses.ok(chain.HealthShape("ok"))

    async def read_readiness(self, _: Request) -> Response:
        return readiness_response(await self.readiness.report(), stopping=self.stopping.is_set)

    async def read_chain(self, _: Request) -> Response:
        return responses.ok(deployment_shape(self.deployment, await self.deployment.read_state()))
