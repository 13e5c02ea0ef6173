"""Health, readiness, the deployment."""

import attrs

from coordinatord.api import answers, views, write_views
from coordinatord.api.answers import Answer
from coordinatord.api.routes import CHAIN, Reply, Request, Route
from coordinatord.indexer.readiness import Readiness
from coordinatord.service.deployment import Deployment


@attrs.define(slots=True)
class Stopping:
    """Set when the daemon begins to stop: balancers are told before anything else happens."""

    begun: bool = False


@attrs.frozen(slots=True)
class System:
    readiness: Readiness
    deployment: Deployment
    stopping: Stopping

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/healthz",
                about="Whether the server listens",
                handler=self.health,
                replies=(Reply(200, shape=views.Health),),
            ),
            Route(
                method="GET",
                path="/readyz",
                about="Whether the index may be read",
                handler=self.ready,
                replies=(Reply(200, shape=views.Readiness), Reply(503, shape=views.Readiness)),
            ),
            Route(
                method="GET",
                path="/evm/chain",
                about="The deployment, and the chain as the node sees it now",
                handler=self.chain,
                replies=(Reply(200, shape=write_views.Deployment), *CHAIN, Reply(503, "config_read")),
            ),
        ]

    async def health(self, _: Request) -> Answer:
        return answers.ok(views.Health("ok"))

    async def ready(self, _: Request) -> Answer:
        return answers.readiness(await self.readiness.report(), stopping=self.stopping.begun)

    async def chain(self, _: Request) -> Answer:
        deployment = self.deployment
        now = await deployment.now()
        return answers.ok(write_views.deployment(deployment.book, now, deployment.block_time_ms))
