"""Reading content by its id from storage gateways.

Nothing is taken on a gateway's word: the caller says whether content is the right one. One that serves something else
(an error page as 200, a cut answer) must not fail jobs whose content another gateway has.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import attrs
import httpx
import structlog
import trio

from svcd.base.end_reasons import WorkFailed
from svcd.payload.http_reading import EncodedAnswer, ForeignRedirect, followed, hand_pieces
from svcd.payload.spool import Spool

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
