"""Pin store on Kubo, through its RPC `/api/v0`.

    add      multipart form with one part; answers lines of JSON, the last one with the content id in `Hash`
    cat      the content, or `length` bytes of it from `offset`
    pin/rm   lets the next garbage collection remove the content; pin/add, pin/ls
    every call is a POST; a failure is a 500 with `{"Message": …, "Code": 0, "Type": "error"}`

Kubo chooses the content id, and serves the content only by that id. The import options request the coordinator's layout
(1 MiB chunks, raw leaves, CIDv1). A node with another layout returns another id for the same bytes. A CIDv0 is the same
block in another encoding.
"""

import base64
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import anyio
import attrs
import msgspec

from common.cid import Cid, read_store_cid
from common.daemon.secrets import Secret
from common.refusal import Refused
from common.strict_json import DECODE_ERRORS
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import HttpClient, HttpResponse, NoResponse, open_http
from coordinatord.storage.pins.pinned_sql import KeyMap
from coordinatord.storage.pins.requests import (
    StoreClock,
    build_payload,
    missing_error,
    observe_request,
    rejected_error,
    retry_unavailable,
    unavailable_error,
)
from coordinatord.storage.pins.store import (
    PART_BYTES,
    BeforePart,
    PinnedObject,
    StreamedContent,
    ignore_part,
    require_cid_of_content,
)

_MAX_CONNECTIONS: Final = 32
# Many, because a client that reads slowly occupies a connection for long.
_MAX_STREAM_CONNECTIONS: Final = 128
_MAX_ATTEMPTS: Final = 3
# Limit of content that is read whole.
_MAX_CONTENT_BYTES: Final = 32 << 20
_MAX_ANSWER_BYTES: Final = 1 << 20
_ANSWER_TIMEOUT_S: Final = 90.0
# Measures the clock difference for operators only. Requests to Kubo are not signed.
_STORE_CLOCK: Final = StoreClock()
# Set the options whose defaults differ between versions of Kubo, so that all versions split content into the same raw
# blocks. The node's own configuration decides how these blocks are linked into a tree.
_IMPORT_OPTIONS: Final = {
    "pin": "true",
    "cid-version": "1",
    "raw-leaves": "true",
    "chunker": "size-1048576",
    "progress": "false",
    "quieter": "true",
}
# Do not search the whole network for missing content.
_OFFLINE_OPTION: Final = {"offline": "true"}
_UNPINNED_MESSAGE: Final = "not pinned"
_MISSING_MESSAGES: Final = ("not found locally", "could not find", "not found", "offline", "no link named")


class _AddAnswer(msgspec.Struct):
    Hash: str = ""


class _ErrorAnswer(msgspec.Struct):
    Message: str = ""


class RepoStat(msgspec.Struct):
    """Bytes stored on the node, and its limit."""

    RepoSize: int = 0
    StorageMax: int = 0


@attrs.frozen(slots=True)
class KuboStore:
    http: HttpClient
    streams: HttpClient
    endpoint: str
    authorization: str | None
    keys: KeyMap
    attempts: int = _MAX_ATTEMPTS

    async def put(self, key: str, content: bytes) -> PinnedObject:
        answer = await retry_unavailable(
            self.attempts, lambda: self._send_once("put", "add", _IMPORT_OPTIONS, _build_form((content,)))
        )
        cid = _parse_added_cid(answer)
        require_cid_of_content(cid, await build_payload(content))
        return await self._pin_content(key, cid, len(content))

    async def put_pieces(
        self, key: str, pieces: AsyncIterable[bytes], *, before_part: BeforePart = ignore_part
    ) -> PinnedObject:
        content = await StreamedContent.begin(pieces)
        if content.is_whole:
            return await self.put(key, b"".join(content.buffered))

        failed: list[Exception] = []

        async def all_pieces() -> AsyncIterator[bytes]:
            reported_bytes = 0
            try:
                await before_part("")
                async for piece in content.pieces():
                    if content.size - reported_bytes >= PART_BYTES:
                        reported_bytes = content.size
                        await before_part("")
                    yield piece
            except Exception as error:
                failed.append(error)
                raise

        # No retry, because streamed content cannot be sent again. Kubo discards an interrupted upload.
        try:
            cid = _parse_added_cid(await self._send_once("put", "add", _IMPORT_OPTIONS, _build_form(all_pieces())))
        except Retryable:
            # The HTTP client hides why the request broke off.
            if failed:
                raise failed[0] from None
            raise
        # Content of this size is never a single block.
        if cid.codec == "raw":
            raise rejected_error("the returned content id does not match the content")
        return await self._pin_content(key, cid, content.size)

    async def abort(self, key: str, upload_id: str) -> None:
        """Do nothing: an interrupted upload leaves nothing behind."""

    async def holds(self, key: str) -> bool:
        cid = await self.keys.find_cid(key)
        if cid is None:
            return False
        try:
            await self._run_command("head", "pin/ls", {"arg": cid, "type": "recursive", **_OFFLINE_OPTION})
        except Retryable as error:
            if error.code == "object_missing":
                return False
            raise
        return True

    async def get(self, key: str) -> bytes:
        return await self._run_command("get", "cat", {"arg": await self._read_cid(key), **_OFFLINE_OPTION})

    @asynccontextmanager
    async def read(self, key: str, *, first: int = 0, last: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        arguments = {"arg": await self._read_cid(key), **_OFFLINE_OPTION}
        if first:
            arguments["offset"] = str(first)
        if last is not None:
            arguments["length"] = str(last - first + 1)
        async with AsyncExitStack() as stack:
            response = await retry_unavailable(self.attempts, lambda: self._open_content(arguments, stack))
            try:
                yield response.pieces
            except NoResponse as error:
                raise unavailable_error(str(error)) from error

    async def delete(self, key: str) -> None:
        await self.keys.unpin(key, self._unpin)

    async def read_repo_stat(self) -> RepoStat:
        """Return the size and the limit of the node's store."""
        answer = await self._run_command("stat", "repo/stat", {"size-only": "true"})
        try:
            # Some nodes write numbers as text.
            return msgspec.json.decode(answer, type=RepoStat, strict=False)
        except DECODE_ERRORS as broken:
            raise rejected_error(f"the answer to repo/stat is malformed: {broken}") from broken

    async def _pin_content(self, key: str, cid: Cid, size: int) -> PinnedObject:
        """Record the key, then pin the content again. The removal of another key may have unpinned the same content
        after the upload and before this record."""
        replaced = await self.keys.pin(key, str(cid))
        await self._run_command("pin", "pin/add", {"arg": str(cid), **_OFFLINE_OPTION})
        if replaced is not None:
            await self.keys.unpin(replaced, self._unpin)
        return PinnedObject(str(cid), size)

    async def _unpin(self, cid: str) -> None:
        try:
            await self._run_command("delete", "pin/rm", {"arg": cid})
        except Retryable as error:
            if error.code != "object_missing":
                raise

    async def _read_cid(self, key: str) -> str:
        cid = await self.keys.find_cid(key)
        if cid is None:
            raise missing_error(key)
        return cid

    async def _run_command(self, operation: str, command: str, arguments: dict[str, str]) -> bytes:
        return await retry_unavailable(
            self.attempts, lambda: self._send_once(operation, command, arguments, _EMPTY_FORM)
        )

    async def _send_once(self, operation: str, command: str, arguments: dict[str, str], form: "_Form") -> bytes:
        max_bytes = _MAX_CONTENT_BYTES if command == "cat" else _MAX_ANSWER_BYTES
        with observe_request(operation):
            async with self.http("POST", self._url(command, arguments), self._headers(form), form.body) as response:
                with anyio.fail_after(_ANSWER_TIMEOUT_S):
                    answer = await response.read(max_bytes)
                    _STORE_CLOCK.compare_if_due(response.headers)
                _require_success(response.status, command, answer)
        return answer

    async def _open_content(self, arguments: dict[str, str], stack: AsyncExitStack) -> HttpResponse:
        with observe_request("read"):
            async with AsyncExitStack() as opening:
                request = self.streams("POST", self._url("cat", arguments), self._headers(_EMPTY_FORM), ())
                response = await opening.enter_async_context(request)
                if response.status != HTTPStatus.OK:
                    _require_success(response.status, "cat", await response.read(_MAX_ANSWER_BYTES))
                response.require_unencoded()
                await stack.enter_async_context(opening.pop_all())
        return response

    def _url(self, command: str, arguments: dict[str, str]) -> str:
        return f"{self.endpoint}/api/v0/{command}?{urlencode(arguments)}"

    def _headers(self, form: "_Form") -> dict[str, str]:
        headers = dict(form.headers)
        if self.authorization is not None:
            headers["authorization"] = self.authorization
        return headers


@attrs.frozen(slots=True)
class _Form:
    """Body of a request with one file."""

    headers: dict[str, str]
    body: Sequence[bytes] | AsyncIterable[bytes]


_EMPTY_FORM: Final = _Form({}, ())


def _build_form(content: Sequence[bytes] | AsyncIterable[bytes]) -> _Form:
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="content"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    ).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    if isinstance(content, AsyncIterable):
        return _Form(headers, _wrap_pieces(head, content, tail))
    return _Form(headers, (head, *content, tail))


async def _wrap_pieces(head: bytes, content: AsyncIterable[bytes], tail: bytes) -> AsyncIterator[bytes]:
    yield head
    async for piece in content:
        yield piece
    yield tail


def _parse_added_cid(answer: bytes) -> Cid:
    """Return the content id from the last line. After status 200, a failure appears there in place of the id."""
    lines = answer.strip().splitlines()
    try:
        text = msgspec.json.decode(lines[-1], type=_AddAnswer).Hash if lines else ""
        return read_store_cid(text, "cid")
    except (*DECODE_ERRORS, Refused) as wrong:
        raise rejected_error(f"the answer has no valid content id: {wrong}") from wrong


def _require_success(status: int, command: str, answer: bytes) -> None:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    try:
        message = msgspec.json.decode(answer, type=_ErrorAnswer).Message
    except DECODE_ERRORS:
        message = ""
    absent = (_UNPINNED_MESSAGE,) if command.startswith("pin/") else (*_MISSING_MESSAGES, _UNPINNED_MESSAGE)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and any(words in message for words in absent):
        raise missing_error(command)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise unavailable_error(f"HTTP {status} {message}".strip())
    raise rejected_error(f"HTTP {status} {message}".strip())


@asynccontextmanager
async def open_kubo(
    endpoint: str, user: Secret, password: Secret, keys: KeyMap, *, timeout_s: float = 30.0
) -> AsyncIterator[KuboStore]:
    """Open a Kubo store. `user` and `password` are for basic authorisation. Both may be empty.

    `timeout_s` is the longest wait between two reads. The timeout of connecting is a third of that.
    """
    credentials = f"{user.reveal()}:{password.reveal()}"
    authorization = None if credentials == ":" else f"Basic {base64.b64encode(credentials.encode()).decode()}"
    async with (
        open_http(connections=_MAX_CONNECTIONS, timeout_s=timeout_s, connect_timeout_s=timeout_s / 3) as http,
        open_http(connections=_MAX_STREAM_CONNECTIONS, timeout_s=timeout_s, connect_timeout_s=timeout_s / 3) as streams,
    ):
        yield KuboStore(http, streams, endpoint, authorization, keys)
