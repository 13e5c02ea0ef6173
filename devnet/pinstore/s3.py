"""The S3 interface, path style: /<bucket>/<key>. Every request is signed; see devnet.pinstore.sigv4."""

import base64
import binascii
import email.utils
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, unquote

import attrs
from aiohttp import web
from anyio import to_thread

from devnet.pinstore import multipart
from devnet.pinstore.content import SMALL, Digests, Held, Received, outgoing, receive, receive_small, stretch_of
from devnet.pinstore.objects import Objects, Put, StoredObject
from devnet.pinstore.s3_errors import S3Error
from devnet.pinstore.sigv4 import UNSIGNED, Credential, SignedRequest, authenticate

# Check of a body against the digests in its headers.

_DIGESTS: Final[dict[str, Callable[[Digests], bytes]]] = {
    "content-md5": lambda digests: digests.md5,
    "x-amz-checksum-crc32": lambda digests: digests.crc32,
    "x-amz-checksum-sha1": lambda digests: digests.sha1,
    "x-amz-checksum-sha256": lambda digests: digests.sha256,
}


def require_checkable(headers: Mapping[str, str]) -> None:
    """Before the body is read: a digest that cannot be checked here must not seem to have been."""
    for name in headers:
        if name.startswith("x-amz-checksum-") and name not in _DIGESTS:
            raise S3Error("NotImplemented", f"{name} is not supported.")


def require_promised(digests: Digests, signed_hash: str, headers: Mapping[str, str]) -> None:
    if signed_hash not in (UNSIGNED, digests.sha256.hex()):
        raise S3Error("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")
    for name, digest in _DIGESTS.items():
        if name not in headers:
            continue
        try:
            promised = base64.b64decode(headers[name], validate=True)
        except binascii.Error:
            raise S3Error("InvalidDigest", f"{name} is not base64.") from None
        if promised != digest(digests):
            raise S3Error("BadDigest", f"The body does not have the digest in {name}.")


_LARGEST_PUT: Final = 5 << 30
_LONGEST_KEY: Final = 1024
_CID: Final = "x-amz-meta-cid"
_METADATA: Final = "x-amz-meta-"

Operation = Callable[["S3", "S3Call"], Awaitable[web.StreamResponse]]


@attrs.frozen
class S3Call:
    """An authenticated request on one key."""

    request: web.BaseRequest
    key: str
    signed_hash: str
    query: Mapping[str, str]

    @property
    def content_type(self) -> str:
        return self.request.headers.get("content-type", "binary/octet-stream")

    @property
    def metadata(self) -> dict[str, str]:
        """What the client says of the object. The content id is not the client's to say."""
        headers = self.request.headers
        return {name: headers[name] for name in headers if name.startswith(_METADATA) and name != _CID}


@attrs.frozen
class S3:
    objects: Objects
    bucket: str
    credentials: tuple[Credential, ...]

    async def endpoint(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except S3Error as error:
            return error.response(unquote(request.raw_path.partition("?")[0]), with_body=request.method != "HEAD")

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        raw_path, raw_query = (part.encode("utf-8", "surrogateescape") for part in (path, query))
        signed = SignedRequest(request.method, raw_path, raw_query, request.raw_headers)
        signed_hash = authenticate(signed, self.credentials, datetime.now(UTC))
        bucket, _, key = unquote(path).removeprefix("/").partition("/")
        if bucket != self.bucket:
            raise S3Error("NoSuchBucket", "There is no such bucket.")
        if len(key.encode()) > _LONGEST_KEY:
            raise S3Error("KeyTooLongError", f"Keys have at most {_LONGEST_KEY} bytes.")
        if not key:
            return await self._bucket(request)
        call = S3Call(request, key, signed_hash, dict(parse_qsl(query, keep_blank_values=True)))
        return await _operation(call)(self, call)

    async def _bucket(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(headers={"x-amz-bucket-region": self.credentials[0].region})
        raise S3Error("NotImplemented", "Of a bucket, only its existence can be asked.")

    async def receive(self, call: S3Call, largest: int = _LARGEST_PUT) -> Received:
        """The body, on disk and checked against all that its headers promise."""
        _require_receivable(call, largest)
        received = await receive(call.request, self.objects.incoming())
        try:
            require_promised(received.digests, call.signed_hash, call.request.headers)
        except S3Error:
            received.path.unlink()
            raise
        return received

    async def _receive_small(self, call: S3Call) -> Held:
        _require_receivable(call, SMALL)
        held = await receive_small(call.request)
        require_promised(held.digests, call.signed_hash, call.request.headers)
        return held

    async def put(self, call: S3Call) -> web.StreamResponse:
        if "x-amz-copy-source" in call.request.headers:
            raise S3Error("NotImplemented", "Copies are not supported.")
        is_small = (call.request.content_length or 0) <= SMALL
        content = await (self._receive_small(call) if is_small else self.receive(call))
        stored = await self.objects.share(
            Put(call.key, content, content.digests.md5.hex(), call.content_type, call.metadata)
        )
        return web.Response(headers={"etag": f'"{stored.etag}"', _CID: stored.cid})

    async def get(self, call: S3Call) -> web.StreamResponse:
        found = await to_thread.run_sync(self.objects.open, call.key)
        if found is None:
            raise S3Error("NoSuchKey", "There is no object under this key.")
        stored, file = found
        try:
            unchanged = _precondition(call.request, stored)
            stretch = stretch_of(call.request.headers.get("range"), stored.size)
            if stretch is None:
                raise S3Error("InvalidRange", f"The object has {stored.size} bytes.")
            headers = _headers(stored)
            if unchanged or call.request.method == "HEAD":
                file.close()
                status = 304 if unchanged else stretch.status
                return web.Response(status=status, headers=headers | ({} if unchanged else stretch.headers))
        except BaseException:
            file.close()
            raise
        return await outgoing(call.request, file, stretch, headers)

    async def delete(self, call: S3Call) -> web.StreamResponse:
        await to_thread.run_sync(self.objects.delete, call.key)
        return web.Response(status=204)

    async def create_upload(self, call: S3Call) -> web.StreamResponse:
        return await multipart.create(self.objects, self.bucket, call.key, call.content_type, call.metadata)

    async def upload_part(self, call: S3Call) -> web.StreamResponse:
        target = await multipart.target_part(self.objects, call.key, call.query)
        received = await self.receive(call)
        return await multipart.put_part(self.objects, target, received)

    async def complete_upload(self, call: S3Call) -> web.StreamResponse:
        upload = await multipart.find(self.objects, call.key, call.query)
        received = await self.receive(call, multipart.LARGEST_COMPLETION)
        stored = await multipart.complete(self.objects, upload, received)
        location = f"http://{call.request.host}{call.request.raw_path.partition('?')[0]}"
        return multipart.completion(location, self.bucket, stored, {_CID: stored.cid})

    async def abort_upload(self, call: S3Call) -> web.StreamResponse:
        upload = await multipart.find(self.objects, call.key, call.query)
        await to_thread.run_sync(self.objects.end_upload, upload)
        return web.Response(status=204)

    async def list_parts(self, call: S3Call) -> web.StreamResponse:
        upload = await multipart.find(self.objects, call.key, call.query)
        return await multipart.listing(self.objects, self.bucket, upload)


def _require_receivable(call: S3Call, largest: int) -> None:
    length = call.request.content_length
    if length is None:
        raise S3Error("MissingContentLength", "A content-length header is required.")
    if length > largest:
        raise S3Error("EntityTooLarge", f"The body is larger than {largest} bytes.")
    require_checkable(call.request.headers)


# Method, and those names of the query that change what it means.
_OPERATIONS: Final[dict[tuple[str, frozenset[str]], Operation]] = {
    ("PUT", frozenset()): S3.put,
    ("GET", frozenset()): S3.get,
    ("HEAD", frozenset()): S3.get,
    ("DELETE", frozenset()): S3.delete,
    ("POST", frozenset({"uploads"})): S3.create_upload,
    ("PUT", frozenset({"partNumber", "uploadId"})): S3.upload_part,
    ("POST", frozenset({"uploadId"})): S3.complete_upload,
    ("DELETE", frozenset({"uploadId"})): S3.abort_upload,
    ("GET", frozenset({"uploadId"})): S3.list_parts,
}
_SAYS_NOTHING: Final = {"x-id"}  # some clients name the operation for whoever reads the log


def _operation(call: S3Call) -> Operation:
    names = frozenset(call.query) - _SAYS_NOTHING
    operation = _OPERATIONS.get((call.request.method, names))
    if operation is None:
        raise S3Error("NotImplemented", f"{call.request.method} with {sorted(names)} is not supported.")
    return operation


def _precondition(request: web.BaseRequest, stored: StoredObject) -> bool:
    """True if the caller has this content already (304); raises if it asked for another (412)."""
    if not _matches(request.headers.get("if-match", "*"), stored.etag):
        raise S3Error("PreconditionFailed", "The object is another than the one asked for.")
    return _matches(request.headers.get("if-none-match", ""), stored.etag)


def _matches(header: str, etag: str) -> bool:
    return header.strip() == "*" or etag in (tag.strip().strip('"') for tag in header.split(","))


def _headers(stored: StoredObject) -> dict[str, str]:
    return {
        "etag": f'"{stored.etag}"',
        "last-modified": email.utils.formatdate(stored.modified, usegmt=True),
        "content-type": stored.content_type,
        **stored.metadata,
        _CID: stored.cid,
    }
