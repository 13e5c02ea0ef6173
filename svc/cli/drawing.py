"""Draw tables and screens on a terminal, with rich. A pipe never needs rich, so it is imported in the functions."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from common.text_table import hanging

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
from svc.cli.clean_text import one_line

_NOTHING: Final = "—"
_GAP: Final = "  "  # between columns
_INDENT: Final = "  "
_NARROWEST_TEXT: Final = 16  # columns that a column of text is shrunk to, and no further
_NARROWEST_CUT: Final = 8  # the same on a full screen, where cells are cut to one line


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


def draw_table(table: Table, width: int) -> "RenderableType":
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

    widths = [max(cell_len(flat(cell)) for cell in cells) for cells in zip(table.columns, *table.rows, strict=True)]
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
        lines.append(Text("\n".join(flat(row[at]) for at in whole), style, overflow="fold"))
        lines.append(Padding(_grid(attrs.evolve(below, rows=[rest]), widths, header=False, style=style), (0, 0, 0, 2)))
    return Group(*lines)


def _blocks(table: Table, width: int) -> "RenderableType":
    """Each row as names and values, one below the other."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    blocks = ["\n".join(fact_lines(zip(table.columns, row, strict=True), width)) for row in table.rows]
    return Group(*(Text(f"{block}\n", overflow="fold") for block in blocks))


def fact_lines(facts: Iterable[tuple[str, str | None]], width: int) -> Iterator[str]:
    """Names and values in two columns."""
    shown = [(name, flat(value)) for name, value in facts]
    names = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        yield hanging(f"{name:<{names}}{_GAP}", value, width, indent=len(_INDENT))


_FRAME: Final = 5  # lines of a screen that are no rows: head, its rule, the columns' names, the keys and their rule


def draw_screen(screen: Screen, width: int, height: int) -> "RenderableType":
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
        drawn.add_row(*(escape(flat(cell)) for cell in row))
    return drawn


def flat(cell: str | None) -> str:
    """On one line: a name that somebody else chose must not forge rows, nor reach the terminal as a command."""
    if cell is None:
        return _NOTHING
    return "".join(sign if sign.isprintable() else " " for sign in cell)
