"""Output of a command: results to standard output, remarks and progress to standard error.

Results go to standard output, all else to standard error, so that a pipe carries results alone. On a terminal a
table is drawn; in a pipe it is one line per row with tabs between its cells; with `--json` standard output is JSON.

No terminal obeys what somebody else wrote: messages are cleaned wherever they go, results where they go to a terminal.
A pipe gets results as they are, and no rich, which is what takes longest to import of all that a command line needs.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TextIO

import attrs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
from svc.cli.clean_text import cleaned, cleaned_json, one_line
from svc.cli.drawing import Screen, Table, draw_screen, draw_table, fact_lines, flat

_FORCING: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})  # variables that make rich see a terminal in a pipe


@attrs.frozen
class NextStep:
    """Where a command that ends early leaves things, and the commands that go on from there."""

    where: str
    commands: Sequence[str] = ()


@attrs.define
class Gauge:
    """Progress bars on a terminal, one per stage of the work. Without a terminal nothing is written."""

    _progress: "Progress | None"
    _task: Any = None
    _done: int = 0

    def stage(self) -> None:
        """Leave the bar of the last stage as it is. The next `show` starts a new one below it."""
        self._task, self._done = None, 0

    def show(self, what: str, done: int | None = None, total: int | None = None) -> None:
        """Update the bar. It never moves back, also where a newer answer counts fewer."""
        if self._progress is None:
            return
        from rich.markup import escape  # noqa: PLC0415

        if self._task is None:
            self._task = self._progress.add_task(escape(one_line(what)), total=None, count="")
        if done is not None:
            done = self._done = max(done, self._done)
        count = "" if done is None or not total else f"{done}/{total}"
        # A total of 0 is one that is not known yet; rich would draw a full bar.
        self._progress.update(
            self._task, description=escape(one_line(what)), completed=done, total=total or None, count=count
        )

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Out of the way while somebody is asked something."""
        if self._progress is None:
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()


class Output:
    def __init__(self, *, as_json: bool, quiet: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self.next: NextStep | None = None  # told if the command fails or is interrupted
        self._quiet = quiet
        self._stdout = sys.stdout if out is None else out
        self._stderr = sys.stderr if err is None else err

    @cached_property
    def _out(self) -> "Console":
        from rich.console import Console  # noqa: PLC0415

        return Console(file=self._stdout, highlight=False)

    @cached_property
    def _err(self) -> "Console":
        from rich.console import Console  # noqa: PLC0415

        return Console(file=self._stderr, highlight=False, soft_wrap=True)

    @cached_property
    def _out_shown(self) -> bool:
        return _may_be_terminal(self._stdout) and self._out.is_terminal

    @cached_property
    def _err_shown(self) -> bool:
        return _may_be_terminal(self._stderr) and self._err.is_terminal

    def table(self, table: Table, data: Any) -> None:
        """`data` is what the table shows, in the words of the interface: that is what `--json` gives."""
        if self.as_json:
            self.json(data)
        elif self._out_shown:
            self._out.print(draw_table(table, self._out.width))
        else:
            for row in table.rows:
                self._write("\t".join(flat(cell) for cell in row))

    def facts(self, facts: Iterable[tuple[str, str | None]], data: Any) -> None:
        """Names and values of one thing."""
        if self.as_json:
            self.json(data)
            return
        shown = [(name, value) for name, value in facts if value is not None]
        if self._out_shown:
            lines = fact_lines(shown, self._out.width)
        else:
            lines = (f"{name}\t{flat(value)}" for name, value in shown)
        for line in lines:
            self._write(line)

    def text(self, text: str) -> None:
        """A result: as it is in a pipe, cleaned on a terminal."""
        self._write(cleaned(text) if self._out_shown else text)

    def json(self, data: Any) -> None:
        if self._out_shown:
            self._write(cleaned_json(json.dumps(data, indent=2, ensure_ascii=False)))
        else:
            self._write(json.dumps(data, ensure_ascii=False))

    def json_line(self, data: Any) -> None:
        """One of many results, each a line."""
        line = json.dumps(data, ensure_ascii=False)
        self._write(cleaned_json(line) if self._out_shown else line)

    def say(self, line: str) -> None:
        """A remark for whoever watches."""
        if not self._quiet:
            self._remark(line)

    def warn(self, line: str) -> None:
        self._remark(line, "svc: warning:", "yellow")

    def fail(self, line: str, hint: str | None, data: Any) -> None:
        """Why the command fails: a line, and what may be done; under `--json` one object, on standard error too."""
        following = self.next
        if self.as_json:
            if following is not None:
                data = data | {"next": {"where": following.where, "commands": list(following.commands)}}
            self._stderr.write(cleaned_json(json.dumps({"error": data}, ensure_ascii=False)) + "\n")
            return
        self._remark(line, "svc:", "red")
        if hint is not None:
            self._remark(f"     {hint}")
        if following is not None:
            self._remark(f"     {following.where}{':' if following.commands else ''}")
            for command in following.commands:  # alone on its line, where it can be copied from
                self._remark(f"  {command}")

    def _remark(self, line: str, head: str = "", colour: str = "") -> None:
        """A line on standard error, after a head that a terminal shows in a colour."""
        shown = one_line(line)
        if not self._err_shown:
            self._stderr.write(f"{head} {shown}\n" if head else f"{shown}\n")
            return
        from rich.text import Text  # noqa: PLC0415

        self._err.print(Text.assemble((head, colour), " ", shown) if head else Text(shown))

    @contextmanager
    def gauge(self, *, among_results: bool = False) -> Iterator[Gauge]:
        """`among_results`: they are written meanwhile; on one terminal with them a bar would cut their lines."""
        shown = self._err_shown and not self._err.is_dumb_terminal and not (among_results and self._out_shown)
        if self._quiet or self.as_json or not shown:
            yield Gauge(None)
            return
        from rich import progress  # noqa: PLC0415

        columns = (
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=30),
            progress.TextColumn("{task.fields[count]}"),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, console=self._err, transient=True) as bar:
            yield Gauge(bar)

    @property
    def to_terminal(self) -> bool:
        return self._out_shown and not self.as_json

    @contextmanager
    def live(self) -> Iterator[Callable[[Table], None]]:
        """On a terminal, a table that is drawn anew in its place."""
        from rich.live import Live  # noqa: PLC0415

        with Live(console=self._out, auto_refresh=False) as live:
            yield lambda table: live.update(draw_table(table, self._out.width), refresh=True)

    @contextmanager
    def screen(self) -> Iterator[Callable[[Screen], None]]:
        """The whole terminal, given back as it was."""
        from rich.live import Live  # noqa: PLC0415

        with Live(console=self._out, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
            yield lambda screen: live.update(draw_screen(screen, self._out.width, self._out.height), refresh=True)

    def flush(self) -> None:
        """Now: whoever reads waits for what is next."""
        self._stdout.flush()

    def _write(self, line: str) -> None:
        """Not through rich: it would wrap, and read brackets as markup."""
        self._stdout.write(line + "\n")


def _may_be_terminal(file: TextIO) -> bool:
    """False where rich, which looks at more than the file, would say so too."""
    return file.isatty() or not _FORCING.isdisjoint(os.environ)
