"""Run a program of the market without one of its defences. A test that does not notice proves nothing.

    python -m tests.support.attacks.undefended <defence> <module> <argument>…

For defences that no setting switches off. `cancels`: a coordinator relays every cancel, also of a job that has ended.
`bombs`: a provider accepts and decompresses responses in any encoding, as HTTP libraries do by default.
"""

import runpy
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from unittest.mock import patch

import httpx


def _relay_every_cancel() -> None:
    from coordinatord.api.orders.endings import EndingFinder  # noqa: PLC0415 - a provider has none of this
    from coordinatord.chain.relayer import outbox_sql  # noqa: PLC0415

    async def find_nothing(*_: object, in_logs: bool) -> None:
        return None

    submit_all = outbox_sql.submit_all

    async def submit_all_anew(connection: Any, relays: Any, *, max_depth: int) -> Any:
        # Make mined cancels impossible to find by job.
        await connection.execute(
            "update relays set subject = subject || '\\x00' where kind = 'cancel' and state = 'mined'"
        )
        outcomes = await submit_all(connection, relays, max_depth=max_depth)
        await connection.execute(
            "update relays set subject = substr(subject, 1, length(subject) - 1)"
            " where kind = 'cancel' and state = 'mined'"
        )
        return outcomes

    patch.object(EndingFinder, "find_transaction", find_nothing).start()
    patch.object(outbox_sql, "submit_all", submit_all_anew).start()


def _unfold_answers() -> None:
    from svc.wire import answers  # noqa: PLC0415

    raw = httpx.Response.aiter_raw

    def take(_headers: object) -> None:
        return None

    async def unfolded(response: httpx.Response, _size: int | None = None) -> AsyncIterator[bytes]:
        decoder = response._get_content_decoder()
        async for piece in raw(response):
            yield decoder.decode(piece)
        yield decoder.flush()

    patch.object(answers, "IDENTITY_HEADERS", {"accept-encoding": "gzip"}).start()
    patch.object(answers, "check_response_encoding", take).start()
    patch.object(httpx.Response, "aiter_raw", unfolded).start()


DEFENCES: Final[dict[str, Callable[[], None]]] = {"cancels": _relay_every_cancel, "bombs": _unfold_answers}


def main() -> None:
    defence, module, *arguments = sys.argv[1:]
    DEFENCES[defence]()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
