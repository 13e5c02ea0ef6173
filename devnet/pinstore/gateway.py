"""GET /ipfs/<cid>: content by its id, for anybody. What an id names never changes: caches may keep it."""

import os
from collections.abc import Mapping
from typing import Final

import attrs
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from common.cid import parse_cid
from common.refusal import Refused
from devnet.pinstore.content import Outgoing, stretch_of
from devnet.pinstore.objects import Objects

_OPEN_TO_ALL: Final = {"access-control-allow-origin": "*"}


@attrs.frozen
class Gateway:
    objects: Objects

    async def endpoint(self, request: Request) -> Response:
        try:
            cid = str(parse_cid(request.path_params["cid"], "cid"))
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
        size = os.fstat(file.fileno()).st_size
        stretch = stretch_of(request.headers.get("range"), size)
        if f'"{cid}"' in request.headers.get("if-none-match", ""):
            answer = Response(status_code=304, headers=headers)
        elif stretch is None:
            answer = _plain(416, "the range is outside of the content", {"content-range": f"bytes */{size}"})
        elif request.method == "HEAD":
            answer = Response(status_code=stretch.status, headers=headers | stretch.headers)
        else:
            return Outgoing(file, stretch, headers)
        file.close()
        return answer


def _plain(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{message}\n", status, headers={**_OPEN_TO_ALL, **(headers or {})})
