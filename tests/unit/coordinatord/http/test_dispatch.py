import pytest

from coordinatord.base.outcomes import SessionRow
from coordinatord.http.bodies import BodyBudget, BodyReader
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets
from coordinatord.http.dispatch import Dispatcher, DispatcherServices
from coordinatord.http.response_cache import BlockCache
from coordinatord.http.responses import Response
from coordinatord.http.routing import Request, Route
from coordinatord.http.uploads import TransferLimits, UploadReader
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.support.fakes.index_position import Standing
from tests.unit.coordinatord.http.asgi import ask, scope

pytestmark = pytest.mark.anyio

AT_5, AT_6 = Snapshot(5, b"a", 1), Snapshot(6, b"b", 2)


async def is_ready() -> bool:
    return True


async def no_session(_: str) -> SessionRow | None:
    return None


def application(routes: list[Route], position: Standing) -> CallerLimits:
    budget = BodyBudget(1000)
    uploads = UploadReader(budget, TransferLimits(8, 8), max_bytes=1000, min_bytes_per_s=1, stall_timeout_s=1)
    services = DispatcherServices(is_ready, no_session, BodyReader(60, 1), budget, uploads, BlockCache(position))
    return CallerLimits(Dispatcher(routes, services), TokenBuckets(1e9, 1e9), frozenset())


@pytest.mark.parametrize(("written", "is_read_again"), [(200, True), (409, False)])
async def test_read_after_a_write_is_not_answered_from_before_it(written: int, is_read_again: bool) -> None:
    reads = 0

    async def read(_: Request) -> Response:
        nonlocal reads
        reads += 1
        return Response(200, b"{}", snapshot=AT_5)

    async def write(_: Request) -> Response:
        return Response(written, b"{}")

    routes = [
        Route(method="GET", path="/rows", id="rows", tag="Rows", about="", handler=read, replies=(), index_backed=True),
        Route(method="POST", path="/rows", id="rows", tag="Rows", about="", handler=write, replies=()),
    ]
    app = application(routes, Standing(AT_6, known=AT_5))  # the index advanced after its last read
    for method in ("GET", "GET", "POST", "GET"):
        await ask(app, scope(method, "/rows"))
    assert reads == (2 if is_read_again else 1)
