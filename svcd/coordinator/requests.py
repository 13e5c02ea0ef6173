"""Requests to the coordinator, repeated only where that is safe and of use.

An error is repeated when its `x-svc-retryable` header says so, and on nothing else; not before its `retry-after` is
over, unless that is later than the caller's deadline. A request that got no answer at all is repeated when the caller
says that it may be (`resend`): it may have taken effect. A proxy that answers in the coordinator's place, which is
being restarted, say, gives no answer of it either.
"""

import random
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import attrs
import httpx
import trio

from common.refusal import Refused
from common.strict_json import parse
from svcd.base.clock import Clock
from svcd.payload.http_reading import LongAnswer, opened, read_whole

_ATTEMPTS: Final = 4
_LONGEST_PAUSE: Final = 10.0
_LONGEST_TOLD: Final = 60.0  # what a coordinator may tell us to wait: longer, and jobs would be late for nothing
_LONGEST_WAIT: Final = 180.0  # for a whole answer, where the caller names no time: one that trickles ends, too
_LONGEST_ANSWER: Final = 16 * 2**20  # pages are cut at 4 MiB
# One of them is on every error of a coordinator.
_RETRYABLE: Final = "x-svc-retryable"
_REQUEST_ID: Final = "x-request-id"
_OF_PROXIES: Final = frozenset({502, 503, 504})
_SECONDS: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@attrs.frozen(slots=True)
class CoordinatorReply:
    """An answer of whatever status. `body` is None when it is no JSON."""

    status: int
    body: object
    retryable: bool
    date: float | None = None  # the coordinator's clock, in Unix seconds
    retry_after: float = 0.0  # seconds

    @property
    def code(self) -> str | None:
        """The error's code, or its type where it has none."""
        code = self._error.get("code") or self._error.get("type")
        return str(code) if code is not None else None

    @property
    def param(self) -> str | None:
        """The field that the error is about."""
        param = self._error.get("param")
        return str(param) if param is not None else None

    @property
    def _error(self) -> dict[str, object]:
        error = self.fields.get("error")
        return error if isinstance(error, dict) else {}

    @property
    def fields(self) -> dict[str, object]:
        """The body's members; none of what is no object."""
        return self.body if isinstance(self.body, dict) else {}


@attrs.frozen(slots=True)
class Unanswered:
    """The connection failed, or the answer did not come in time: what was asked may have taken effect or not."""

    detail: str


@attrs.frozen(slots=True)
class Requests:
    """`url`: the coordinator's address, without a slash at its end. `clock` is corrected by what it answers."""

    http: httpx.AsyncClient
    url: str
    clock: Clock | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
        give_up_at: float | None = None,
        resend: bool = True,
        attempts: int = _ATTEMPTS,
        **more: Any,
    ) -> CoordinatorReply | Unanswered:
        """With `give_up_at` (loop time) it goes on until then; without it, `attempts` times."""
        attempt = 0
        while True:
            answer = await self._once(method, path, give_up_at, params=params, json=json, headers=headers, **more)
            again = resend if isinstance(answer, Unanswered) else answer.retryable
            pause = min(_LONGEST_PAUSE, 0.5 * 2 ** min(attempt, 8)) + random.uniform(0, 0.25)  # noqa: S311 - spreads load
            told = answer.retry_after if isinstance(answer, CoordinatorReply) else 0.0
            # A wait that is told beyond the deadline is not obeyed: a settle would be given up with time left for it.
            if give_up_at is None or trio.current_time() + told < give_up_at:
                pause = max(pause, told)
            attempt += 1
            over = attempt >= attempts if give_up_at is None else trio.current_time() + pause >= give_up_at
            if not again or over:
                return answer
            await trio.sleep(pause)

    async def _once(
        self, method: str, path: str, give_up_at: float | None, **request: Any
    ) -> CoordinatorReply | Unanswered:
        until = give_up_at if give_up_at is not None else trio.current_time() + _LONGEST_WAIT
        with trio.move_on_at(until) as scope:
            try:
                async with opened(self.http, method, self.url + path, **request) as response:
                    self._hear(response)
                    return _answer(response, await read_whole(response, _LONGEST_ANSWER))
            except httpx.HTTPError as failure:  # connections, time-outs, answers that are no HTTP
                return Unanswered(f"{type(failure).__name__}: {failure}")
            except LongAnswer as long:
                return Unanswered(str(long))
        if not scope.cancelled_caught:
            raise AssertionError("a request ends with an answer or at its deadline")
        return Unanswered("no answer within the time that was left")

    def _hear(self, response: httpx.Response) -> None:
        """A cache between us may have kept an answer for a while: its time is not the coordinator's."""
        date = _date(response.headers.get("date"))
        if self.clock is not None and date is not None and "age" not in response.headers:
            self.clock.heard(date)


def _answer(response: httpx.Response, content: bytes) -> CoordinatorReply | Unanswered:
    said = response.headers.get(_RETRYABLE)
    if response.status_code in _OF_PROXIES and said is None and _REQUEST_ID not in response.headers:
        return Unanswered(f"a proxy answered {response.status_code}")
    try:
        body: object = parse(content)
    except Refused:
        body = None
    retryable = response.is_error and said == "true"
    told = response.headers.get("retry-after", "")
    wait = min(_LONGEST_TOLD, float(told)) if retryable and _SECONDS.fullmatch(told) else 0.0
    return CoordinatorReply(response.status_code, body, retryable, _date(response.headers.get("date")), wait)


def _date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text is not None else None
    except (ValueError, OverflowError):
        return None
