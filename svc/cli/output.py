"""Output of a command: results on standard output, notes and progress on standard error.

A terminal gets a drawn table. A pipe gets one line per row, with tabs. `--json` gives JSON.

Text of third parties must not control the terminal. Messages are always cleaned, results only on a terminal. A pipe
gets results unchanged, and never imports rich, the slowest import of the command line.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TextIO

import attrs

from common.checks import CheckRow, check_records, check_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
from svc.cli.clean_text import clean, clean_json, clean_line
from svc.cli.drawing import Screen, Table, draw_screen, draw_table, fact_lines, flatten_cell

# rich treats a pipe as a terminal if one of these variables is set.
_TERMINAL_VARIABLES: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})


@attrs.frozen
class NextStep:
    """Advice after an interrupted command: the `state` of the order, and the `commands` with which to continue."""

    state: str
    commands: Sequence[str] = ()


@attrs.define
class ProgressBar:
    """Progress bars on a terminal, one per stage. Without a terminal, nothing is drawn."""

    _progress: "Progress | None"
    _task: Any = None
    _done: int = 0

    def start_stage(self) -> None:
        """Start a new bar, below the last bar, at the next `show`."""
        self._task, self._done = None, 0

    def show(self, label: str, done: int | None = None, total: int | None = None) -> None:
        """Update the bar. The bar never moves back, even if a later call has a lower count."""
        if self._progress is None:
            return
        from rich.markup import escape  # noqa: PLC0415

        if self._task is None:
            self._task = self._progress.add_task(escape(clean_line(label)), total=None, count="")
        if done is not None:
            done = self._done = max(done, self._done)
        count = "" if done is None or not total else f"{done}/{total}"
        # A total of 0 means that the total is unknown. Pass None, because rich would draw a full bar for 0.
        self._progress.update(
            self._task, description=escape(clean_line(label)), completed=done, total=total or None, count=count
        )

    def stop(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @contextmanager
    def pause_for_prompt(self) -> Iterator[None]:
        """Hide the bar while the user is asked a question."""
        if self._progress is None:
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()


class Output:
    """Writes results, notes, warnings and errors."""

    def __init__(self, *, as_json: bool, quiet: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self.next_step: NextStep | None = None  # shown if the command fails or is interrupted
        self._quiet = quiet
        self._stdout = sys.stdout if out is None else out
        self._stderr = sys.stderr if err is None else err

    @cached_property
    def _out_console(self) -> "Console":
        from rich.console import Console  # noqa: PLC0415

        return Console(file=self._stdout, highlight=False)

    @cached_property
    def _err_console(self) -> "Console":
        from rich.console import Console  # noqa: PLC0415

        return Console(file=self._stderr, highlight=False, soft_wrap=True)

    @cached_property
    def _out_is_terminal(self) -> bool:
        return _may_be_terminal(self._stdout) and self._out_console.is_terminal

    @cached_property
    def _err_is_terminal(self) -> bool:
        return _may_be_terminal(self._stderr) and self._err_console.is_terminal

    def show_table(self, table: Table, data: Any) -> None:
        """Show a table, or `data` with `--json`."""
        if self.as_json:
            self.write_json(data)
        elif self._out_is_terminal:
            self._out_console.print(draw_table(table, self._out_console.width))
        else:
            for row in table.rows:
                self._write("\t".join(flatten_cell(cell) for cell in row))

    def show_checks(self, rows: Sequence[CheckRow]) -> None:
        """Show a table of checks."""
        if self.as_json:
            self.write_json(check_records(rows))
            return
        columns = self._out_console.width if self._out_is_terminal else None
        for line in check_table([_flatten_check(row) for row in rows], columns).splitlines():
            self._write(line)

    def show_facts(self, facts: Iterable[tuple[str, str | None]], data: Any) -> None:
        """Show one object as a list of names and values."""
        if self.as_json:
            self.write_json(data)
            return
        shown = [(name, value) for name, value in facts if value is not None]
        if self._out_is_terminal:
            lines = fact_lines(shown, self._out_console.width)
        else:
            lines = (f"{name}\t{flatten_cell(value)}" for name, value in shown)
        for line in lines:
            self._write(line)

    def write_text(self, text: str) -> None:
        """Write a result: unchanged in a pipe, cleaned on a terminal."""
        self._write(clean(text) if self._out_is_terminal else text)

    def write_partial_text(self, text: str) -> None:
        """Write a part of a text at once, without a line end."""
        self._stdout.write(clean(text) if self._out_is_terminal else text)
        self._stdout.flush()

    def write_json(self, data: Any) -> None:
        if self._out_is_terminal:
            self._write(clean_json(json.dumps(data, indent=2, ensure_ascii=False)))
        else:
            self._write(json.dumps(data, ensure_ascii=False))

    def write_json_line(self, data: Any) -> None:
        """Write one of many results as a line of JSON."""
        line = json.dumps(data, ensure_ascii=False)
        self._write(clean_json(line) if self._out_is_terminal else line)

    def write_note(self, line: str) -> None:
        """Write a note, unless `--quiet` is set."""
        if not self._quiet:
            self._write_message(line)

    def warn(self, line: str) -> None:
        self._write_message(line, "svc: warning:", "yellow")

    def show_error(self, line: str, hint: str | None, data: Any) -> None:
        """Write an error, a hint and the next step. With `--json` this is one object, also on standard error."""
        next_step = self.next_step
        if self.as_json:
            if next_step is not None:
                data = data | {"next": {"where": next_step.state, "commands": list(next_step.commands)}}
            self._stderr.write(clean_json(json.dumps({"error": data}, ensure_ascii=False)) + "\n")
            return
        self._write_message(line, "svc:", "red")
        if hint is not None:
            self._write_message(f"     {hint}")
        if next_step is not None:
            self._write_message(f"     {next_step.state}{':' if next_step.commands else ''}")
            for command in next_step.commands:  # each on a separate line, for copying
                self._write_message(f"  {command}")

    def _write_message(self, line: str, prefix: str = "", colour: str = "") -> None:
        """Write a line to standard error, with a coloured prefix on a terminal."""
        shown = clean_line(line)
        if not self._err_is_terminal:
            self._stderr.write(f"{prefix} {shown}\n" if prefix else f"{shown}\n")
            return
        from rich.text import Text  # noqa: PLC0415

        self._err_console.print(Text.assemble((prefix, colour), " ", shown) if prefix else Text(shown))

    @contextmanager
    def progress_bar(self, *, shares_terminal: bool = False) -> Iterator[ProgressBar]:
        """Show a progress bar.

        `shares_terminal`: results are written while the bar is shown. If they go to a terminal too, no bar is shown.
        """
        shown = (
            self._err_is_terminal
            and not self._err_console.is_dumb_terminal
            and not (shares_terminal and self._out_is_terminal)
        )
        if self._quiet or self.as_json or not shown:
            yield ProgressBar(None)
            return
        from rich import progress  # noqa: PLC0415

        columns = (
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=30),
            progress.TextColumn("{task.fields[count]}"),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, console=self._err_console, transient=True) as bar:
            yield ProgressBar(bar)

    @property
    def is_on_terminal(self) -> bool:
        return self._out_is_terminal and not self.as_json

    @contextmanager
    def live_table(self) -> Iterator[Callable[[Table], None]]:
        """Redraw a table in place."""
        from rich.live import Live  # noqa: PLC0415

        with Live(console=self._out_console, auto_refresh=False) as live:
            yield lambda table: live.update(draw_table(table, self._out_console.width), refresh=True)

    @contextmanager
    def full_screen(self) -> Iterator[Callable[[Screen], None]]:
        """Draw on the whole terminal, and restore it at the end."""
        from rich.live import Live  # noqa: PLC0415

        with Live(console=self._out_console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
            yield lambda screen: live.update(
                draw_screen(screen, self._out_console.width, self._out_console.height), refresh=True
            )

    def flush(self) -> None:
        """Flush standard output, for readers that wait for the next line."""
        self._stdout.flush()

    def _write(self, line: str) -> None:
        """Write without rich, which would wrap lines and read brackets as markup."""
        self._stdout.write(line + "\n")


def _flatten_check(row: CheckRow) -> CheckRow:
    """Put texts from third parties on one line, so that these texts cannot forge a row."""
    return attrs.evolve(row, detail=flatten_cell(row.detail), remedy=flatten_cell(row.remedy))


def _may_be_terminal(file: TextIO) -> bool:
    """Return True if rich might treat the file as a terminal. If False, rich need not be imported."""
    return file.isatty() or not _TERMINAL_VARIABLES.isdisjoint(os.environ)
