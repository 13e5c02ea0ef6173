"""The ASGI application: every route, behind the layers that every request passes."""

import attrs
from starlette.types import ASGIApp

from coordinatord.api.batches import BatchRoutes
from coordinatord.api.bodies import BodyBudget, BodyReader
from coordinatord.api.book import Book
from coordinatord.api.caching import BlockCache
from coordinatord.api.callers import CallerLimits, TokenBuckets
from coordinatord.api.cors import Cors, Origins
from coordinatord.api.dispatch import Dispatcher, Gates
from coordinatord.api.escrow import EscrowRoutes
from coordinatord.api.files import FileRoutes
from coordinatord.api.frame import Frame
from coordinatord.api.handshake import Handshake
from coordinatord.api.jobs import Jobs
from coordinatord.api.models import Models
from coordinatord.api.openapi import openapi_route
from coordinatord.api.operations import Operations
from coordinatord.api.providers import Providers
from coordinatord.api.routes import Route
from coordinatord.api.system import System
from coordinatord.api.uploading import HELD_BYTES, UploadReader, UploadsAtOnce
from coordinatord.config import Config
from coordinatord.indexer.readiness import Readiness
from coordinatord.service.index_reads import IndexReads
from coordinatord.service.sessions import Sessions


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
    config: Config, endpoints: Endpoints, readiness: Readiness, sessions: Sessions, reads: IndexReads
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
