"""Reading content by its id from storage gateways.

Nothing is taken on a gateway's word: the caller says whether content is the right one. One that serves something else
(an error page as 200, a cut answer) must not fail jobs whose content another gateway has.
"""

import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import attrs
import httpx
import structlog
import trio

from common.framing import SEALED_FRAME_BYTES
from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused
from common.sealed_stream import BEFORE_FRAMES
from svcd.base.errors import WorkFailed

# A payload on its way in: in memory while it is small, in a file that nobody else can open once it is not.

_IN_MEMORY: Final = 2 * 2**20


class Spool:
    """`limit`: more bytes than this are refused by `write`."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self.length = 0

    async def write(self, piece: bytes) -> bool:
        """False when the payload has become longer than allowed."""
        self.length += len(piece)
        if self.length > self._limit:
            return False
        if self._file is None and len(self._memory) + len(piece) > _IN_MEMORY:
            await trio.to_thread.run_sync(self._move_to_file)
        if self._file is None:
            self._memory += piece
        else:
            await trio.to_thread.run_sync(self._file.write, piece)
        return True

    def clear(self) -> None:
        """For another attempt."""
        self.length = 0
        self._memory.clear()
        if self._file is not None:
            with suppress(OSError):  # a full disk: what it could not take is given up here
                self._file.close()
            self._file = None

    @property
    def is_small(self) -> bool:
        """Small enough to be worked on without a thread."""
        return self._file is None

    def pieces(self) -> Iterator[bytes]:
        """From the start, cut where a container's frames end; reads a file, so large ones are for a thread."""
        if self._file is None:
            yield bytes(self._memory[:BEFORE_FRAMES])
            for at in range(BEFORE_FRAMES, len(self._memory), SEALED_FRAME_BYTES):
                yield bytes(self._memory[at : at + SEALED_FRAME_BYTES])
            return
        self._file.seek(0)
        yield self._file.read(BEFORE_FRAMES)
        while piece := self._file.read(SEALED_FRAME_BYTES):
            yield piece

    def _move_to_file(self) -> None:
        # Unlinked from the start: a crash leaves nothing behind.
        self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - lives as long as the spool
        self._file.write(self._memory)
        self._memory = bytearray()


# Reading an HTTP answer piece by piece as it was sent, with a way to stop early that leaves nothing to the garbage
# collector.
#
# httpx nests asynchronous generators that it does not close. Leaving its iteration by `break` or an exception abandons
# them half-way, and trio complains when they are collected. Cancelling the read instead ends them from the innermost
# out.

_LAST_WORDS_SECONDS: Final = 1.0
_MOST_REDIRECTS: Final = 5


class EncodedAnswer(httpx.DecodingError):
    """An answer in an encoding that nobody asked for. What it unfolds to may be of any size: it is not read."""


class ForeignRedirect(httpx.RequestError):
    """A redirect that is not followed."""


class LongAnswer(Exception):
    """An answer of more bytes than it may have."""


@asynccontextmanager
async def opened(
    http: httpx.AsyncClient, method: str, url: str | httpx.URL, **request: Any
) -> AsyncIterator[httpx.Response]:
    """An answer with its body unread."""
    headers: Mapping[str, str] = request.pop("headers", None) or {}
    async with http.stream(method, url, headers={**headers, **IDENTITY}, **request) as response:
        yield response


@asynccontextmanager
async def followed(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """What a GET leads to. httpx would read, and unfold, the bodies of the redirects on the way.

    A redirect may lead to the same host, or to another by https: a gateway is no way into the network of this machine,
    whose services are asked in the clear.
    """
    request = http.build_request("GET", url, headers=dict(IDENTITY))
    for _ in range(_MOST_REDIRECTS):
        response = await http.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
            following = response.next_request
        finally:
            await response.aclose()
        if following.url.host != request.url.host and following.url.scheme != "https":
            where = f"{following.url.scheme}://{following.url.host}"
            raise ForeignRedirect(f"a redirect to {where}: another host must speak https", request=request)
        request = following
    raise httpx.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects", request=request)


def require_unencoded(response: httpx.Response) -> None:
    """Before anything of it is read. Raises EncodedAnswer."""
    try:
        require_plain(response.headers)
    except Refused as encoded:
        raise EncodedAnswer(encoded.message, request=response.request) from None


async def read_whole(response: httpx.Response, longest: int) -> bytes:
    """Raises LongAnswer, and what `read_pieces` raises."""
    body = bytearray()

    def take(piece: bytes) -> bool:
        try:
            require_short(len(body) + len(piece), longest)
        except Refused as long:
            raise LongAnswer(long.message) from None
        body.extend(piece)
        return False

    await read_pieces(response, take)
    return bytes(body)


async def read_pieces(response: httpx.Response, take: Callable[[bytes], bool]) -> None:
    """Until the answer ends or `take` has enough of it (returns True). What `take` raises is raised.

    An answer that is enough is given a second to end, so that its connection can be used again. Raises EncodedAnswer
    before anything is read.
    """

    async def taking(piece: bytes) -> bool:
        return take(piece)

    await hand_pieces(response, taking)


async def hand_pieces(response: httpx.Response, take: Callable[[bytes], Awaitable[bool]]) -> None:
    """As `read_pieces` does, to a `take` that takes its time."""
    require_unencoded(response)
    error: Exception | None = None
    with trio.CancelScope() as reading:
        async for piece in response.aiter_raw():
            if error is not None:
                continue  # the cancellation arrives with the next piece that has to be waited for
            try:
                if await take(piece):
                    reading.deadline = min(reading.deadline, trio.current_time() + _LAST_WORDS_SECONDS)
            except Exception as raised:  # kept for below, whatever it is
                error = raised
                reading.cancel()
    if error is not None:
        raise error


log = structlog.get_logger(__name__)
T = TypeVar("T")

_SERVER_ERROR: Final = 500
_CID: Final = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)


def is_content_id(cid: str) -> bool:
    """Whether it can be asked for. The chain takes any text of an owner who posts there directly, and it becomes a
    path."""
    return _CID.fullmatch(cid) is not None


@attrs.frozen(slots=True)
class PayloadGateways:
    """Tried in turn. A 404 (not there yet) and a 5xx are worth another attempt, until there were `attempts` answers in
    all; any other status, and content that is not the right one, ends that gateway's part in it. No answer at all is
    the network's fault, and is not counted.
    """

    http: httpx.AsyncClient
    urls: Sequence[str]
    attempts: int = 8
    pause: float = 1.5

    async def fetch(self, cid: str, into: Spool, give_up_at: float, check: Callable[[], Awaitable[T]]) -> T:
        """What `check` makes of `into`, once it holds the content; its `WorkFailed` says that it is not the right one.

        `WorkFailed`: the first gateway's that had something else (`bad_container` when it was longer than allowed),
        when no other gave the right one; `task_unresolved` when none gave anything.
        """
        if not is_content_id(cid):
            raise WorkFailed("task_unresolved", "the order names no content id")
        left = list(self.urls)
        error = WorkFailed("task_unresolved", "no gateway")
        wrong: WorkFailed | None = None
        with trio.move_on_at(give_up_at):
            asked = answers = 0
            while left and answers < self.attempts:
                if asked and asked % len(left) == 0:
                    await trio.sleep(self.pause)
                url = left[asked % len(left)]
                asked += 1
                try:
                    status = await self._once(url, cid, into)
                    if status is None:
                        return await check()
                except WorkFailed as other:
                    log.warning("a gateway served other content", gateway=url, cid=cid, reason=other.reason)
                    wrong = wrong or other
                    left.remove(url)
                    continue
                except OSError as full:  # ours: httpx has its own for the network's
                    raise WorkFailed("task_unresolved", f"it cannot be kept here: {full.strerror}") from None
                error = WorkFailed("task_unresolved", f"{url}: {status}")
                if isinstance(status, int):
                    answers += 1
                    if status != httpx.codes.NOT_FOUND and status < _SERVER_ERROR:
                        left.remove(url)
        raise wrong or error

    async def _once(self, url: str, cid: str, into: Spool) -> int | str | None:
        """None when it is all there; the status, or what went wrong."""
        into.clear()

        async def keep(piece: bytes) -> bool:
            if not await into.write(piece):
                raise WorkFailed("bad_container", "it is longer than max_container_bytes")
            return False

        try:
            async with followed(self.http, f"{url}/ipfs/{cid}") as response:
                if not response.is_success:
                    return response.status_code
                await hand_pieces(response, keep)
                return None
        except (EncodedAnswer, ForeignRedirect) as odd:
            raise WorkFailed("task_unresolved", f"{url}: {odd}") from None
        except httpx.HTTPError as failure:
            return f"{type(failure).__name__}: {failure}"

    async def reachable(self, url: str) -> str | None:
        """None when the gateway answers; else what is wrong. For `svcd check`."""
        try:
            # Content that no gateway has: any answer but a server's error shows that it is there.
            async with followed(self.http, f"{url}/ipfs/{_EMPTY_CID}") as response:
                status = response.status_code
        except httpx.HTTPError as failure:
            return f"{type(failure).__name__}: {failure}"
        return f"answered {status}" if status >= _SERVER_ERROR else None


_EMPTY_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"  # of no bytes
