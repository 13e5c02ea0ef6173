"""A proxy to a real coordinator that answers 404 to `/events` and removes `wait` from polls. Clients and providers
behind it poll, as at a market without both."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, web
from multidict import CIMultiDict
from yarl import URL

_HOP: Final = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")
_ABSENT: Final = {"error": {"type": "not_found", "code": "not_found", "message": "no such route", "param": None}}
_LARGEST: Final = 1 << 28


@asynccontextmanager
async def without_events(base_url: str, port: int) -> AsyncIterator[str]:
    """The proxy's address, while it serves."""
    async with ClientSession(
        timeout=ClientTimeout(total=None), cookie_jar=DummyCookieJar(), auto_decompress=False
    ) as behind:

        async def passed_on(request: web.Request) -> web.Response:
            if request.path.endswith("/events"):
                return web.json_response(_ABSENT, status=404)
            url = URL(base_url + request.raw_path, encoded=True)
            if "wait" in url.query:
                url = url.without_query_params("wait")
            body = await request.read() if request.can_read_body else None
            async with behind.request(
                request.method, url, headers=_end_to_end(request.headers), data=body, allow_redirects=False
            ) as answer:
                content = await answer.read()
                return web.Response(status=answer.status, body=content, headers=_end_to_end(answer.headers))

        app = web.Application(client_max_size=_LARGEST)
        app.router.add_route("*", "/{path:.*}", passed_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP)
