"""The ASGI application: every route, behind the layers that every request passes."""

import attrs
from starlette.types import ASGIApp

from coordinatord.batches.routes import BatchRoutes
from coordinatord.book.reads import IndexReads
from coordinatord.book.routes import Book, Models, Providers
from coordinatord.config import Config
from coordinatord.escrow.routes import EscrowRoutes
from coordinatord.files.routes import FileRoutes
from coordinatord.http.bodies import BodyBudget, BodyReader
from coordinatord.http.dispatch import Dispatcher, Gates
from coordinatord.http.middleware import CallerLimits, Cors, Frame, Origins, TokenBuckets
from coordinatord.http.openapi import openapi_route
from coordinatord.http.response_cache import BlockCache
from coordinatord.http.routing import Route
from coordinatord.http.uploads import HELD_BYTES, UploadReader, UploadsAtOnce
from coordinatord.operations.routes import Operations
from coordinatord.orders.routes import Jobs
from coordinatord.sessions.routes import Handshake
from coordinatord.sessions.sessions import SessionService
from coordinatord.system.readiness import ReadinessCheck
from coordinatord.system.routes import System


@attrs.frozen(slots=True)
class Endpoints:
    """Handlers by topic, with the services under them."""

    system: System
    handshake: Handshake
    models: Models
    jobs: Jobs
    files: FileRoutes
    book: Book
    operations: Operations
    providers: Providers
    escrow: EscrowRoutes
    batches: BatchRoutes

    def routes(self) -> list[Route]:
        topics = (
            self.system,
            self.handshake,
            self.models,
            self.jobs,
            self.files,
            self.book,
            self.operations,
            self.providers,
            self.escrow,
            self.batches,
        )
        routes = [route for topic in topics for route in topic.routes()]
        return [*routes, openapi_route(routes)]


def build_application(
    config: Config, endpoints: Endpoints, readiness: ReadinessCheck, sessions: SessionService, reads: IndexReads
) -> ASGIApp:
    routes = endpoints.routes()
    longest_body = max(route.body.limit for route in routes if route.body is not None)
    gates = Gates(
        is_ready=readiness.is_ready,
        find_session=sessions.find,
        bodies=BodyReader(config.body_deadline_s, config.body_least_rate, config.body_silence_s),
        budget=BodyBudget(config.body_memory_bytes, max(config.body_memory_bytes // 2, longest_body)),
        uploads=UploadReader(
            BodyBudget(config.upload_memory_bytes, max(config.upload_memory_bytes // 2, HELD_BYTES)),
            UploadsAtOnce(config.uploads_per_caller, config.uploads_per_wallet),
            config.max_blob_bytes,
            config.upload_least_rate,
            config.body_silence_s,
        ),
        cache=BlockCache(reads.position),
    )
    buckets = TokenBuckets(config.requests_per_second, config.requests_burst)
    app: ASGIApp = Dispatcher(routes, gates)
    app = CallerLimits(app, buckets, frozenset(config.trusted_proxies))
    origins = Origins.of(config.cors_origins)
    if config.cors_origins:
        app = Cors(app, origins)
    return Frame(app, origins)
