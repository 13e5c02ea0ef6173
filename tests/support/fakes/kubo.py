"""Kubo's RPC for the calls that the coordinator makes, as in its reference: one node's blocks and pins.

Ids, ranges, errors and their texts match js-ipfs (ipfs-core 0.18 with ipfs-http-server 0.15), which serves the same RPC
and was run against the same client.
"""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from common.cid import ImportProfile, cid_of, dag_pb_leaf_cid, parse_cid
from devnet.ports import LOOPBACK, pick_free

STORAGE_MAX: Final = 10**10


@attrs.define
class KuboNode:
    """`as_before`: import with CIDv0, like old versions. `authorization`: the header that the RPC requires."""

    as_before: bool = False
    authorization: tuple[str, str] | None = None
    content: dict[str, bytes] = attrs.field(factory=dict)
    pins: set[str] = attrs.field(factory=set)
    endpoint: str = ""

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings of a coordinator that stores content here."""
        user, password = self.authorization or ("", "")
        return {
            "PIN_STORE": "kubo",
            "PIN_STORE_ENDPOINT": self.endpoint,
            "PIN_STORE_KEY": user,
            "PIN_STORE_SECRET": password,
            "PIN_STORE_BUCKET": "",
        }

    def served(self, cid: str) -> bytes | None:
        """Return the content that the gateway serves under this id."""
        return self.content.get(cid)

    def collect_garbage(self) -> None:
        self.content = {cid: content for cid, content in self.content.items() if cid in self.pins}

    def application(self) -> Starlette:
        calls = {"add": self.add, "cat": self.cat, "repo/stat": self.stat}
        routes = [Route(f"/api/v0/{name}", call, methods=["POST"]) for name, call in calls.items()]
        routes += [Route(f"/api/v0/pin/{name}", self.pin, methods=["POST"]) for name in ("add", "rm", "ls")]
        return Starlette(routes=[*routes, Route("/ipfs/{cid}", self.gateway, methods=["GET"])])

    async def add(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        try:
            content, options = file_in(await request.body(), request.headers["content-type"]), request.query_params
        except ClientDisconnect:
            return failure("unexpected EOF")
        cid = self._imported(content, options.get("chunker", "size-262144"))
        self.content[cid] = content
        if options.get("pin", "true") == "true":
            self.pins.add(cid)
        return JSONResponse({"Name": cid, "Hash": spelt(cid, self.as_before), "Size": str(len(content))})

    def _imported(self, content: bytes, chunker: str) -> str:
        if self.as_before and len(content) <= 1 << 18:
            return str(dag_pb_leaf_cid(content))
        return str(cid_of(content, ImportProfile(int(chunker.removeprefix("size-")), 174)))

    async def cat(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        query = request.query_params
        content = self.content.get(query["arg"])
        if content is None:
            return failure(f"block was not found locally (offline): ipld: could not find {query['arg']}")
        first = int(query.get("offset", 0))
        return Response(content[first:][: int(query["length"]) if "length" in query else None])

    async def pin(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        cid, call = request.query_params["arg"], request.url.path.rpartition("/")[2]
        if call == "add":
            if cid not in self.content:
                return failure(f"pin: block was not found locally (offline): ipld: could not find {cid}")
            self.pins.add(cid)
        elif cid not in self.pins:
            return failure("not pinned or pinned indirectly" if call == "rm" else f"path '{cid}' is not pinned")
        elif call == "rm":
            self.pins.remove(cid)
        return JSONResponse({"Pins": [cid]} if call != "ls" else {"Keys": {cid: {"Type": "recursive"}}})

    async def stat(self, _: Request) -> Response:
        size = sum(map(len, self.content.values()))
        return JSONResponse({"RepoSize": size, "StorageMax": STORAGE_MAX})

    async def gateway(self, request: Request) -> Response:
        content = self.content.get(request.path_params["cid"])
        return PlainTextResponse("not found", 404) if content is None else Response(content)

    def _refused(self, request: Request) -> Response | None:
        if self.authorization is None:
            return None
        wanted = "Basic " + b64encode(":".join(self.authorization).encode()).decode()
        return None if request.headers.get("authorization") == wanted else PlainTextResponse("Forbidden", 403)


def file_in(body: bytes, content_type: str) -> bytes:
    """Return the only file of a form."""
    boundary = content_type.partition("boundary=")[2].encode()
    head, _, rest = body.partition(b"\r\n\r\n")
    assert head.startswith(b"--" + boundary + b"\r\n")
    assert rest.endswith(b"\r\n--" + boundary + b"--\r\n")
    return rest.removesuffix(b"\r\n--" + boundary + b"--\r\n")


def failure(message: str) -> Response:
    return JSONResponse({"Message": message, "Code": 0, "Type": "error"}, 500)


def spelt(cid: str, as_before: bool) -> str:
    """Write a CIDv0 in base58. Return any other id unchanged."""
    known = parse_cid(cid, "cid")
    if not as_before or known.codec != "dag-pb":
        return cid
    number, text = int.from_bytes(b"\x12\x20" + known.digest, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"[digit] + text
    return text


@asynccontextmanager
async def running_kubo(node: KuboNode) -> AsyncIterator[KuboNode]:
    port, config, stop = pick_free(), Config(), anyio.Event()
    config.bind = [f"{LOOPBACK}:{port}"]
    config.graceful_timeout = 0.2
    node.endpoint = f"http://{LOOPBACK}:{port}"
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await serve(node.application(), config, shutdown_trigger=stop.wait)  # type: ignore[arg-type] # any ASGI application is one

        tasks.start_soon(run)
        with anyio.fail_after(60):
            while True:
                try:
                    await (await anyio.connect_tcp(LOOPBACK, port)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.02)
        yield node
        stop.set()
