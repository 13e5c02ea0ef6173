"""Ask a person at a terminal before an order costs more than the default ceiling."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

import click
from anyio import to_thread

from svc.cli.clean_text import one_line
from svc.cli.output import Gauge, Output
from svc.errors import OverCeiling

T = TypeVar("T")


async def within_ceiling(
    output: Output, gauge: Gauge | None, max_amount: int | None, pay: Callable[[int | None], Awaitable[T]]
) -> T:
    """`pay` with the ceiling that was given; above the default one a terminal is asked, and all else is refused.

    A ceiling that somebody set is never asked about: it was set so that nobody has to look.
    """
    while True:
        try:
            return await pay(max_amount)
        except OverCeiling as over:
            if not over.default or not _somebody_watches(output):
                raise
            question = f"{one_line(over.message.partition('; ')[0])}. Pay it?"
            with nullcontext() if gauge is None else gauge.aside():
                agreed = await to_thread.run_sync(lambda: click.confirm(question, err=True))  # noqa: B023 - awaited here
            if not agreed:
                raise
            max_amount = over.amount


def _somebody_watches(output: Output) -> bool:
    return not output.as_json and sys.stdin.isatty() and sys.stderr.isatty()
