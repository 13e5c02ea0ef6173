"""Run the parts of `coordinatord check` concurrently."""

from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import attrs

from common.checks import CheckRow, wrong
from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError


@attrs.frozen(slots=True)
class CheckPart:
    """Group of checks that run one after another. Groups run concurrently, each for at most `seconds`."""

    name: str
    rows: Callable[[], AsyncIterator[CheckRow]]
    remedy: str
    seconds: float = 20.0


async def run_parts(parts: Sequence[CheckPart]) -> list[CheckRow]:
    """Run the parts, and return their rows in order. If a part fails or times out, a WRONG row is added to its rows."""
    return [row for rows in await run_each_part(parts) for row in rows]


async def run_each_part(parts: Sequence[CheckPart]) -> list[list[CheckRow]]:
    """Run the parts like `run_parts`, and return one list of rows per part."""
    found: list[list[CheckRow]] = [[] for _ in parts]

    async def run(part: CheckPart, rows: list[CheckRow]) -> None:
        with anyio.move_on_after(part.seconds) as scope:
            try:
                async for row in part.rows():
                    rows.append(row)
            except (Fatal, Retryable, RpcError, OSError) as error:
                rows.append(wrong(part.name, str(error), part.remedy))
        if scope.cancelled_caught:
            rows.append(wrong(part.name, f"no answer in {part.seconds:g} s", part.remedy))

    async with anyio.create_task_group() as tasks:
        for part, rows in zip(parts, found, strict=True):
            tasks.start_soon(run, part, rows)
    return found
