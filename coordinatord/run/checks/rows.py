"""Rows of a check, each right, wrong with what to do, or only told; and the table or the JSON that shows them."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

import anyio
import attrs

from common.daemon.process import Fatal
from common.text_table import hanging
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError

_MARKS: Final = {True: "right", False: "WRONG", None: ""}


@attrs.frozen(slots=True)
class CheckRow:
    """`right` is None for what is only told. `remedy`: what to do about what is wrong."""

    what: str
    right: bool | None
    detail: str
    remedy: str = ""

    @property
    def text(self) -> str:
        return f"{self.detail}: {self.remedy}" if self.remedy else self.detail


def right(what: str, detail: str) -> CheckRow:
    return CheckRow(what, True, detail)


def wrong(what: str, detail: str, remedy: str) -> CheckRow:
    return CheckRow(what, False, detail, remedy)


def told(what: str, detail: str) -> CheckRow:
    return CheckRow(what, None, detail)


def check_table(rows: Iterable[CheckRow], columns: int | None = None) -> str:
    """One line for each, wrapped to the columns of a terminal, and a last one that counts what is wrong."""
    lines = [(_MARKS[row.right], row.what, row.text) for row in rows]
    width = max((len(what) for _, what, _ in lines), default=0)
    shown = [hanging(f"{mark:<5}  {what:<{width}}  ", text, columns, 7) for mark, what, text in lines]
    names = [what for mark, what, _ in lines if mark == _MARKS[False]]
    last = f"{len(names)} wrong: {', '.join(names)}" if names else "nothing is wrong"
    return "\n".join((*shown, last))


def check_json(rows: Iterable[CheckRow]) -> str:
    return json.dumps([attrs.asdict(row) for row in rows], indent=2, ensure_ascii=False)


@attrs.frozen(slots=True)
class CheckPart:
    """Rows that need each other. Parts run side by side, each for at most `seconds`."""

    name: str
    rows: Callable[[], AsyncIterator[CheckRow]]
    remedy: str
    seconds: float = 20.0


async def run_parts(parts: Sequence[CheckPart]) -> list[CheckRow]:
    """The rows of all parts, in the order of the parts. A part that fails or takes too long ends with a wrong row."""
    return [row for rows in await run_each(parts) for row in rows]


async def run_each(parts: Sequence[CheckPart]) -> list[list[CheckRow]]:
    """The same, with the rows of each part by themselves."""
    found: list[list[CheckRow]] = [[] for _ in parts]

    async def run(part: CheckPart, rows: list[CheckRow]) -> None:
        with anyio.move_on_after(part.seconds) as time:
            try:
                async for row in part.rows():
                    rows.append(row)
            except (Fatal, Retryable, RpcError, OSError) as error:
                rows.append(wrong(part.name, str(error), part.remedy))
        if time.cancelled_caught:
            rows.append(wrong(part.name, f"no answer in {part.seconds:g} s", part.remedy))

    async with anyio.create_task_group() as tasks:
        for part, rows in zip(parts, found, strict=True):
            tasks.start_soon(run, part, rows)
    return found
