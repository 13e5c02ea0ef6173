"""Reading content by its id from storage gateways. Whether it is the right content, the caller checks."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import attrs
import httpx
import structlog
import trio

from svcd.failures import JobFailed
from svcd.spool import Spool

log = structlog.get_logger(__name__)

_SERVER_ERROR: Final = 500


@attrs.frozen(slots=True)
class Gateways:
    """Tried in turn. A 404 (not there yet) and a 5xx are worth another attempt, until there were `attempts` answers in
    all; any other status ends that gateway's part in it. No answer at all is the network's trouble, and is not counted.
    """

    http: httpx.AsyncClient
    urls: Sequence[str]
    attempts: int = 8
    pause: float = 1.5

    async def fetch(self, cid: str, into: Spool, give_up_at: float) -> None:
        """`JobFailed`: `task_unresolved` when it cannot be had, `bad_container` when it is longer than allowed."""
        left = list(self.urls)
        trouble = "no gateway"
        with trio.move_on_at(give_up_at):
            asked = answers = 0
            while left and answers < self.attempts:
                if asked and asked % len(left) == 0:
                    await trio.sleep(self.pause)
                url = left[asked % len(left)]
                status = await self._once(url, cid, into)
                asked += 1
                if status is None:
                    return
                trouble = f"{url}: {status}"
                if isinstance(status, int):
                    answers += 1
                    if status != httpx.codes.NOT_FOUND and status < _SERVER_ERROR:
                        left.remove(url)
        raise JobFailed("task_unresolved", trouble)

    async def _once(self, url: str, cid: str, into: Spool) -> int | str | None:
        """None when it is all there; the status, or what went wrong."""
        into.clear()
        try:
            async with self.http.stream("GET", f"{url}/ipfs/{cid}", follow_redirects=True) as response:
                if not response.is_success:
                    return response.status_code
                # Closed here and now, also when it is left early. (A generator, annotated as less.)
                async with aclosing(response.aiter_bytes(65_536)) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        if not await into.write(piece):
                            raise JobFailed("bad_container", "it is longer than max_container_bytes")
                return None
        except httpx.HTTPError as failure:
            return f"{type(failure).__name__}: {failure}"

    async def reachable(self, url: str) -> str | None:
        """None when the gateway answers; else what is wrong. For `svcd check`."""
        try:
            # Content that no gateway has: any answer but a server's error shows that it is there.
            response = await self.http.get(f"{url}/ipfs/{_EMPTY_CID}", follow_redirects=True)
        except httpx.HTTPError as failure:
            return f"{type(failure).__name__}: {failure}"
        return f"answered {response.status_code}" if response.status_code >= _SERVER_ERROR else None


_EMPTY_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"  # of no bytes
