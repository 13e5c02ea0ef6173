"""Output of a command: results to standard output, remarks and progress to standard error.

Results go to standard output, all else to standard error, so that a pipe carries results alone. On a terminal a
table is drawn; in a pipe it is one line per row with tabs between its cells; with `--json` standard output is JSON.

No terminal obeys what somebody else wrote: messages are cleaned wherever they go, results where they go to a terminal.
A pipe gets results as they are, and no rich, which is what takes longest to import of all that a command line needs.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TextIO

import attrs

from common.text_table import hanging

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table as RichTable

# Text of strangers on its way to a terminal, with what the terminal would obey instead of show made visible.
#
#     C0, DEL and C1 controls     moves of the cursor, colours, and with OSC and its like the clipboard and the title
#     bidi controls               text that reads in another order than it stands
#     zero-width and other        letters that nobody sees: tags, joiners, soft hyphens, line separators
#     format characters
#     surrogates                  no text at all; they cannot be written either
#
# Each becomes its escape, `\x1b` or `\u202e`, so that nothing is lost and nothing is done.

_KEPT: Final = frozenset("\n\t")
_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def cleaned(text: str) -> str:
    r"""Lines stay lines.

    >>> cleaned("to \x1b]52;c;bHM=\x07 and \u202egpj.exe")
    'to \\x1b]52;c;bHM=\\x07 and \\u202egpj.exe'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(sign) if _obeyed(sign) and sign not in _KEPT else sign for sign in text)


def cleaned_json(text: str) -> str:
    r"""The same of JSON text, which stays JSON of the same value: only strings hold such signs.

    >>> cleaned_json('{"a": "\u202e"}')
    '{"a": "\\u202e"}'
    """
    return "".join(_json_escape(sign) if _obeyed(sign) and sign not in _KEPT else sign for sign in text)


def one_line(text: str) -> str:
    """For a message: not even its line breaks are obeyed, which could forge another one."""
    return cleaned(text).replace("\n", "\\n").replace("\t", " ")


def _obeyed(sign: str) -> bool:
    return not (" " <= sign <= "~") and unicodedata.category(sign) in _CATEGORIES


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_NOTHING: Final = "—"
_GAP: Final = "  "  # between columns
_INDENT: Final = "  "
_NARROWEST_TEXT: Final = 16  # columns that a column of text is shrunk to, and no further
_NARROWEST_CUT: Final = 8  # the same on a full screen, where cells are cut to one line
_FORCING: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})  # variables that make rich see a terminal in a pipe


@attrs.frozen
class Table:
    """`right`: the names of the columns that hold numbers. `whole`: of those that are copied, ids and addresses, which
    get a line of their own where the table is wider than the terminal."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    right: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@attrs.frozen
class Screen:
    """A terminal that shows one of several panes. `table` is None while it is read."""

    panes: Sequence[str]
    at: int
    status: str
    table: Table | None
    keys: str


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
            self._out.print(_drawn(table, self._out.width))
        else:
            for row in table.rows:
                self._write("\t".join(_flat(cell) for cell in row))

    def facts(self, facts: Iterable[tuple[str, str | None]], data: Any) -> None:
        """Names and values of one thing."""
        if self.as_json:
            self.json(data)
            return
        shown = [(name, value) for name, value in facts if value is not None]
        if self._out_shown:
            lines = _fact_lines(shown, self._out.width)
        else:
            lines = (f"{name}\t{_flat(value)}" for name, value in shown)
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
            yield lambda table: live.update(_drawn(table, self._out.width), refresh=True)

    @contextmanager
    def screen(self) -> Iterator[Callable[[Screen], None]]:
        """The whole terminal, given back as it was."""
        from rich.live import Live  # noqa: PLC0415

        with Live(console=self._out, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
            yield lambda screen: live.update(_screen(screen, self._out.width, self._out.height), refresh=True)

    def flush(self) -> None:
        """Now: whoever reads waits for what is next."""
        self._stdout.flush()

    def _write(self, line: str) -> None:
        """Not through rich: it would wrap, and read brackets as markup."""
        self._stdout.write(line + "\n")


def _may_be_terminal(file: TextIO) -> bool:
    """False where rich, which looks at more than the file, would say so too."""
    return file.isatty() or not _FORCING.isdisjoint(os.environ)


# The drawing itself, by rich. Only a terminal comes here.


def _drawn(table: Table, width: int) -> "RenderableType":
    """Draw a table as a grid; if it is too wide, in two lines a row; if that is too wide, as one block a row."""
    fitting = _fitted(table, width, _NARROWEST_TEXT)
    if fitting is not None:
        return _grid(table, fitting)
    if table.whole:
        rest = [at for at, name in enumerate(table.columns) if name not in table.whole]
        below = Table(
            [table.columns[at] for at in rest], [[row[at] for at in rest] for row in table.rows], right=table.right
        )
        fitting = _fitted(below, width - len(_INDENT), _NARROWEST_TEXT)
        if fitting is not None:
            return _two_lines_each(table, below, fitting)
    return _blocks(table, width)


def _fitted(table: Table, width: int, narrowest: int) -> list[int] | None:
    """Return column widths that fit the terminal, or None if there are none. Only text columns shrink, widest first."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = [max(cell_len(_flat(cell)) for cell in cells) for cells in zip(table.columns, *table.rows, strict=True)]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    shrinkable = [at for at, name in enumerate(table.columns) if name not in table.right | table.whole]
    while excess > 0:
        widest = max(shrinkable, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= narrowest:
            return None
        widths[widest] -= 1
        excess -= 1
    return widths


def _two_lines_each(table: Table, below: Table, widths: Sequence[int]) -> "RenderableType":
    """Ids and addresses on a line of their own, where they can be copied; the rest of the row indented below."""
    from rich.console import Group  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    whole = [at for at, name in enumerate(table.columns) if name in table.whole]
    lines: list[RenderableType] = []
    for row, rest in zip((table.columns, *table.rows), (below.columns, *below.rows), strict=True):
        style = "bold" if row is table.columns else ""
        lines.append(Text("\n".join(_flat(row[at]) for at in whole), style, overflow="fold"))
        lines.append(Padding(_grid(attrs.evolve(below, rows=[rest]), widths, header=False, style=style), (0, 0, 0, 2)))
    return Group(*lines)


def _blocks(table: Table, width: int) -> "RenderableType":
    """Each row as names and values, one below the other."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    blocks = ["\n".join(_fact_lines(zip(table.columns, row, strict=True), width)) for row in table.rows]
    return Group(*(Text(f"{block}\n", overflow="fold") for block in blocks))


def _fact_lines(facts: Iterable[tuple[str, str | None]], width: int) -> Iterator[str]:
    """Names and values in two columns."""
    shown = [(name, _flat(value)) for name, value in facts]
    names = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        yield hanging(f"{name:<{names}}{_GAP}", value, width, indent=len(_INDENT))


_FRAME: Final = 5  # lines of a screen that are no rows: head, its rule, the columns' names, the keys and their rule


def _screen(screen: Screen, width: int, height: int) -> "RenderableType":
    """Panes and status at the top, the table as far as it fits, the keys at the bottom."""
    from rich.console import Group  # noqa: PLC0415
    from rich.layout import Layout  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    head = Text(" ").join(
        Text(f" {at + 1} {name} ", "reverse bold" if at == screen.at else "") for at, name in enumerate(screen.panes)
    )
    status = Text(one_line(screen.status))
    gap = width - head.cell_len - status.cell_len
    head = head + Text(" " * gap) + status if gap > 0 else Text("\n").join((head, status))
    rule = Text("─" * width, "dim")
    room = max(1, height - _FRAME - (gap <= 0))
    table = screen.table
    if table is None:
        shown: RenderableType = Text("reading …")
    elif not table.rows:
        shown = Text("nothing here yet")
    else:
        table = attrs.evolve(table, rows=table.rows[:room])
        widths = _fitted(attrs.evolve(table, whole=frozenset()), width, _NARROWEST_CUT)
        shown = _grid(table, widths, one_line_each=True)
    body = Layout(shown, name="body")
    layout = Layout()
    layout.split_column(
        Layout(Group(head, rule), size=2 + (gap <= 0)), body, Layout(Group(rule, Text(screen.keys)), size=2)
    )
    return layout


def _grid(
    table: Table, widths: Sequence[int] | None, *, header: bool = True, style: str = "", one_line_each: bool = False
) -> "RichTable":
    """Draw with these widths; None leaves them to rich, which then cuts what does not fit."""
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415

    drawn = RichTable(box=None, pad_edge=False, header_style="bold", show_header=header, style=style)
    for at, column in enumerate(table.columns):
        drawn.add_column(
            column,
            justify="right" if column in table.right else "left",
            overflow="ellipsis" if one_line_each else "fold",
            no_wrap=one_line_each,
            width=None if widths is None else widths[at],
        )
    for row in table.rows:
        drawn.add_row(*(escape(_flat(cell)) for cell in row))
    return drawn


def _flat(cell: str | None) -> str:
    """On one line: a name that somebody else chose must not forge rows, nor reach the terminal as a command."""
    if cell is None:
        return _NOTHING
    return "".join(sign if sign.isprintable() else " " for sign in cell)


# Records as `--json` gives them: plain values, and decimal strings for what JSON's readers would round.

_LARGEST_SAFE: Final = 2**53 - 1


def wire_form(value: Any) -> Any:
    """
    >>> wire_form({"amount": 2**53, "units": [7]})
    {'amount': '9007199254740992', 'units': [7]}
    """
    import msgspec  # noqa: PLC0415 - for answers alone

    return _safe(msgspec.to_builtins(value))


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(each) for each in value]
    if type(value) is int and abs(value) > _LARGEST_SAFE:
        return str(value)
    return value
