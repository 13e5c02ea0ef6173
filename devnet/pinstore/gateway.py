"""GET /ipfs/<cid>: content by its id, for anybody. What an id names never changes: caches may keep it."""

import io
from collections.abc import Mapping
from typing import Final

import attrs
from aiohttp import web

from common.cid import parse_cid
from common.refusal import Refused
from devnet.pinstore.content import outgoing, stretch_of
from devnet.pinstore.objects import Objects

_OPEN_TO_ALL: Final = {"access-control-allow-origin": "*"}


@attrs.frozen
class Gateway:
    objects: Objects

    async def endpoint(self, request: web.BaseRequest, named: str) -> web.StreamResponse:
        try:
            cid = str(parse_cid(named, "cid"))
        except Refused as refusal:
            return _plain(400, refusal.message)
        file = self.objects.open_content(cid)  # of a disk of this machine: no time beside that of a change of threads
        if file is None:
            return _plain(404, "this content is not pinned here")
        headers = {
            **_OPEN_TO_ALL,
            "etag": f'"{cid}"',
            "cache-control": "public, max-age=29030400, immutable",
            "content-type": "application/octet-stream",
            "x-ipfs-path": f"/ipfs/{cid}",
        }
        size = file.seek(0, io.SEEK_END)
        stretch = stretch_of(request.headers.get("range"), size)
        if f'"{cid}"' in request.headers.get("if-none-match", ""):
            answer = web.Response(status=304, headers=headers)
        elif stretch is None:
            answer = _plain(416, "the range is outside of the content", {"content-range": f"bytes */{size}"})
        elif request.method == "HEAD":
            answer = web.Response(status=stretch.status, headers=headers | stretch.headers)
        else:
            return await outgoing(request, file, stretch, headers)
        file.close()
        return answer


def _plain(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(text=f"{message}\n", status=status, headers={**_OPEN_TO_ALL, **(headers or {})})
