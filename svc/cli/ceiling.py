"""Confirmation on a terminal before an order exceeds the default ceiling."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

import click
from anyio import to_thread

from svc.cli.clean_text import clean_line
from svc.cli.output import Output, ProgressBar
from svc.errors import OverCeiling

T = TypeVar("T")


async def pay_within_ceiling(
    output: Output, progress: ProgressBar | None, max_amount: int | None, pay: Callable[[int | None], Awaitable[T]]
) -> T:
    """Call `pay` with the ceiling. Raises OverCeiling if the cost exceeds a ceiling that the user has set.

    If the cost exceeds the default ceiling, ask the user to confirm. Without a terminal, raise OverCeiling.
    """
    while True:
        try:
            return await pay(max_amount)
        except OverCeiling as error:
            if not error.default or not _is_interactive(output):
                raise
            question = f"{clean_line(error.message.partition('; ')[0])}. Pay it?"
            with nullcontext() if progress is None else progress.pause_for_prompt():
                agreed = await to_thread.run_sync(lambda: click.confirm(question, err=True))  # noqa: B023 - awaited here
            if not agreed:
                raise
            max_amount = error.amount


def _is_interactive(output: Output) -> bool:
    return not output.as_json and sys.stdin.isatty() and sys.stderr.isatty()
