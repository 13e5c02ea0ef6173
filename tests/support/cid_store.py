"""Fake S3 store that pins to IPFS: answers each object with its content id, and serves content at /ipfs/<cid>.

It is the default kind of store (`PIN_STORE=filebase`), in a separate process that tests can kill:

    PIN_STORE_KEY=... PIN_STORE_SECRET=... PIN_STORE_BUCKET=... python -m tests.support.cid_store PORT FOLDER

Several keys may write. Both keys and secrets are comma-separated. FOLDER survives a kill:

    content/<cid>   content, once for all keys that hold it
    keys/<name>     JSON of a key and its content id
    parts/<upload>/ parts of a multipart upload
    incoming/       unfinished uploads
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import attrs
import httpx
import uvloop
from aiohttp import web

from common.cid import UnixFsHasher
from devnet.child import Program, run_program
from devnet.pins import BUCKET, REGION, PinStoreService
from devnet.ports import LOOPBACK

MAX_CLOCK_SKEW_S: Final = 900
_PIECE_BYTES: Final = 1 << 18
_CID_HEADER: Final = "x-amz-meta-cid"
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\S+), ?SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})"
)
_PART: Final = re.compile(rb"<PartNumber>(\d{1,5})</PartNumber>")


@asynccontextmanager
async def running_cid_store(
    port: int, data: Path, logs: Path, keys: dict[str, str] | None = None
) -> AsyncIterator[PinStoreService]:
    """`keys`: secrets by access key. The first belongs to the service that is returned."""
    keys = keys or {f"TEST{secrets.token_hex(7).upper()}": secrets.token_urlsafe(30)}
    program = Program(
        "pin store",
        (sys.executable, "-m", "tests.support.cid_store", str(port), str(data)),
        logs / "pinstore.log",
        environment={
            "PIN_STORE_KEY": ",".join(keys),
            "PIN_STORE_SECRET": ",".join(keys.values()),
            "PIN_STORE_BUCKET": BUCKET,
        },
    )
    url = f"http://{LOOPBACK}:{port}"
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False) as client:

        async def answers() -> bool:
            try:
                await client.get(f"{url}/ipfs/")
            except httpx.TransportError:
                return False
            return True

        await child.wait_until(answers)
        key, secret = next(iter(keys.items()))
        yield PinStoreService("filebase", url, url, key, secret, BUCKET, REGION, (child,))


class S3Error(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@attrs.frozen
class Received:
    path: Path
    cid: str


class Objects:
    """Keys and their content, on disk."""

    def __init__(self, folder: Path) -> None:
        self.content, self._keys, self._parts, self._incoming = (
            folder / name for name in ("content", "keys", "parts", "incoming")
        )
        shutil.rmtree(self._incoming, ignore_errors=True)
        for part in (self.content, self._keys, self._parts, self._incoming):
            part.mkdir(parents=True, exist_ok=True)
        self.cids: dict[str, str] = dict(
            json.loads(path.read_text()) for path in self._keys.iterdir() if path.suffix == ".json"
        )
        self._holders = Counter(self.cids.values())
        for path in self.content.iterdir():
            if path.name not in self._holders:
                path.unlink()

    def incoming(self) -> Path:
        return self._incoming / secrets.token_hex(16)

    def put(self, key: str, received: Received) -> None:
        name = self._keys / hashlib.sha256(key.encode()).hexdigest()
        draft = name.with_suffix(".draft")
        draft.write_text(json.dumps([key, received.cid]))
        received.path.replace(self.content / received.cid)
        draft.replace(name.with_suffix(".json"))
        self._holders[received.cid] += 1
        self._forget(key)
        self.cids[key] = received.cid

    def delete(self, key: str) -> None:
        (self._keys / hashlib.sha256(key.encode()).hexdigest()).with_suffix(".json").unlink(missing_ok=True)
        self._forget(key)

    def _forget(self, key: str) -> None:
        former = self.cids.pop(key, None)
        if former is None:
            return
        self._holders[former] -= 1
        if not self._holders[former]:
            del self._holders[former]
            (self.content / former).unlink()

    def begin_upload(self, key: str) -> str:
        upload = secrets.token_urlsafe(24)
        folder = self._parts / upload
        folder.mkdir()
        (folder / "key").write_text(key)
        return upload

    def parts(self, key: str, upload: str) -> Path:
        folder = self._parts / upload
        if not re.fullmatch(r"[\w-]+", upload) or not folder.is_dir() or (folder / "key").read_text() != key:
            raise S3Error(404, "NoSuchUpload")
        return folder


class Server:
    def __init__(self, objects: Objects, bucket: str, keys: dict[str, str]) -> None:
        self._objects = objects
        self._root = f"/{bucket}/"
        self._keys = keys

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = unquote(request.raw_path.partition("?")[0])
        if path.startswith("/ipfs/"):
            content = self._objects.content / path.rpartition("/")[2]
            return _file(request, content, {"access-control-allow-origin": "*"})
        try:
            self._authenticate(request)
            if not path.startswith(self._root):
                raise S3Error(404, "NoSuchBucket")
            return await self._answer(request, path.removeprefix(self._root))
        except S3Error as error:
            return web.Response(status=error.status, text=f"<Error><Code>{error.code}</Code></Error>")

    def _authenticate(self, request: web.Request) -> None:
        found = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        at = request.headers.get("x-amz-date", "")
        if found is None or found[1] not in self._keys:
            raise S3Error(403, "InvalidAccessKeyId")
        skew = time.time() - datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if abs(skew) > MAX_CLOCK_SKEW_S:
            raise S3Error(403, "RequestTimeTooSkewed")
        scope, signed = found[2], found[3]
        path, _, query = request.raw_path.partition("?")
        headers = "".join(f"{name}:{request.headers[name]}\n" for name in signed.split(";"))
        query = "&".join(sorted(query.split("&")))
        content = request.headers["x-amz-content-sha256"]
        canonical = f"{request.method}\n{path}\n{query}\n{headers}\n{signed}\n{content}"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = b"AWS4" + self._keys[found[1]].encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(key.hex(), found[4]):
            raise S3Error(403, "SignatureDoesNotMatch")

    async def _answer(self, request: web.Request, key: str) -> web.StreamResponse:
        upload = request.query.get("uploadId")
        match request.method:
            case "PUT" if upload is not None:
                number = int(request.query["partNumber"])
                folder = self._objects.parts(key, upload)
                received = await self._receive(request)
                received.path.replace(folder / f"{number:05}")
                return web.Response(headers={"etag": f'"{received.cid}"'})
            case "PUT":
                received = await self._receive(request)
                self._objects.put(key, received)
                return web.Response(headers={_CID_HEADER: received.cid})
            case "POST" if "uploads" in request.query:
                upload = self._objects.begin_upload(key)
                return web.Response(text=f"<UploadId>{upload}</UploadId>")
            case "POST" if upload is not None:
                return self._complete(key, self._objects.parts(key, upload), await request.read())
            case "DELETE" if upload is not None:
                shutil.rmtree(self._objects.parts(key, upload))
                return web.Response(status=204)
            case "DELETE":
                self._objects.delete(key)
                return web.Response(status=204)
            case "GET" if upload is not None:
                self._objects.parts(key, upload)
                return web.Response(text="<ListPartsResult/>")
            case "GET" | "HEAD":
                cid = self._objects.cids.get(key)
                if cid is None:
                    raise S3Error(404, "NoSuchKey")
                return _file(request, self._objects.content / cid, {_CID_HEADER: cid})
        raise S3Error(501, "NotImplemented")

    async def _receive(self, request: web.Request) -> Received:
        digest = hashlib.sha256()
        received, hasher = self._objects.incoming(), UnixFsHasher()
        try:
            with received.open("wb") as file:
                async for piece in request.content.iter_chunked(_PIECE_BYTES):
                    digest.update(piece)
                    hasher.update(piece)
                    file.write(piece)
            if request.headers["x-amz-content-sha256"] not in (digest.hexdigest(), "UNSIGNED-PAYLOAD"):
                raise S3Error(400, "XAmzContentSHA256Mismatch")
        except BaseException:
            received.unlink(missing_ok=True)
            raise
        return Received(received, str(hasher.finish()))

    def _complete(self, key: str, folder: Path, document: bytes) -> web.Response:
        listed = [folder / f"{int(number):05}" for number in _PART.findall(document)]
        if not listed or not all(part.exists() for part in listed):
            raise S3Error(400, "InvalidPart")
        joined = self._objects.incoming()
        received = Received(joined, _join(listed, joined))
        self._objects.put(key, received)
        shutil.rmtree(folder)
        return web.Response(text="<CompleteMultipartUploadResult/>", headers={_CID_HEADER: received.cid})


def _join(parts: Iterable[Path], target: Path) -> str:
    hasher = UnixFsHasher()
    with target.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                while piece := source.read(_PIECE_BYTES):
                    hasher.update(piece)
                    file.write(piece)
    return str(hasher.finish())


def _file(request: web.Request, path: Path, headers: dict[str, str]) -> web.StreamResponse:
    """Answer with a file. aiohttp reads files in a thread, so a short file without ranges is read here."""
    if not path.is_file():
        return web.Response(status=404, headers=headers)
    headers = {**headers, "content-type": "application/octet-stream"}
    if "range" not in request.headers and path.stat().st_size <= _PIECE_BYTES:
        return web.Response(body=path.read_bytes(), headers=headers)
    return web.FileResponse(path, headers=headers)


def main(port: str, folder: str) -> None:
    keys, words = (os.environ[name].split(",") for name in ("PIN_STORE_KEY", "PIN_STORE_SECRET"))
    server = Server(Objects(Path(folder)), os.environ["PIN_STORE_BUCKET"], dict(zip(keys, words, strict=True)))
    application = web.Application(client_max_size=1 << 20)  # of documents; content is read in pieces
    application.router.add_route("*", "/{path:.*}", server.handle)
    web.run_app(
        application,
        host=LOOPBACK,
        port=int(port),
        access_log=None,
        print=None,
        shutdown_timeout=3,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
