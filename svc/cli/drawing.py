"""Draw tables and screens on a terminal, with rich.

Each function imports rich when it is called, because output to a pipe never needs rich.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from common.text_table import hanging_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
from svc.cli.clean_text import clean_line

_EMPTY_CELL: Final = "—"
_COLUMN_GAP: Final = "  "
_FRAME_LINES: Final = 5  # the head, the column names, the help for keys and two horizontal lines
_INDENT: Final = "  "
_MIN_TEXT_WIDTH: Final = 16  # text columns do not become narrower than this
_MIN_CUT_WIDTH: Final = 8  # the same limit on a full screen, where cells are cut to one line


@attrs.frozen
class Table:
    """Table to show on a terminal or to write to a pipe.

    `never_cut`: columns with ids and addresses. On a narrow terminal, these columns are on a separate line.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    right_aligned: frozenset[str] = frozenset()
    never_cut: frozenset[str] = frozenset()


@attrs.frozen
class Screen:
    """Full-screen view of one pane. `table` is None while the data is being read."""

    panes: Sequence[str]
    pane_index: int
    status: str
    table: Table | None
    keys_help: str


def draw_table(table: Table, width: int) -> "RenderableType":
    """Draw a table as a grid. If the grid is too wide, draw two lines per row, or else a block of lines per row."""
    widths_that_fit = _fit_widths(table, width, _MIN_TEXT_WIDTH)
    if widths_that_fit is not None:
        return _draw_grid(table, widths_that_fit)
    if table.never_cut:
        shrinking = [at for at, name in enumerate(table.columns) if name not in table.never_cut]
        remainder = Table(
            [table.columns[at] for at in shrinking],
            [[row[at] for at in shrinking] for row in table.rows],
            right_aligned=table.right_aligned,
        )
        widths_that_fit = _fit_widths(remainder, width - len(_INDENT), _MIN_TEXT_WIDTH)
        if widths_that_fit is not None:
            return _draw_two_lines(table, remainder, widths_that_fit)
    return _draw_blocks(table, width)


def _fit_widths(table: Table, width: int, min_width: int) -> list[int] | None:
    """Return column widths that fit the terminal, or None. Only text columns shrink, the widest first."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = [
        max(cell_len(flatten_cell(cell)) for cell in cells) for cells in zip(table.columns, *table.rows, strict=True)
    ]
    excess = sum(widths) + len(_COLUMN_GAP) * (len(widths) - 1) - width
    shrinkable = [at for at, name in enumerate(table.columns) if name not in table.right_aligned | table.never_cut]
    while excess > 0:
        widest = max(shrinkable, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= min_width:
            return None
        widths[widest] -= 1
        excess -= 1
    return widths


def _draw_two_lines(table: Table, remainder: Table, widths: Sequence[int]) -> "RenderableType":
    """Draw ids and addresses on a separate line, and the rest of the row indented below."""
    from rich.console import Group  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    uncut = [at for at, name in enumerate(table.columns) if name in table.never_cut]
    lines: list[RenderableType] = []
    for row, other_cells in zip((table.columns, *table.rows), (remainder.columns, *remainder.rows), strict=True):
        style = "bold" if row is table.columns else ""
        lines.append(Text("\n".join(flatten_cell(row[at]) for at in uncut), style, overflow="fold"))
        lines.append(
            Padding(
                _draw_grid(attrs.evolve(remainder, rows=[other_cells]), widths, header=False, style=style), (0, 0, 0, 2)
            )
        )
    return Group(*lines)


def _draw_blocks(table: Table, width: int) -> "RenderableType":
    """Draw each row as a list of names and values."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    blocks = ["\n".join(fact_lines(zip(table.columns, row, strict=True), width)) for row in table.rows]
    return Group(*(Text(f"{block}\n", overflow="fold") for block in blocks))


def fact_lines(facts: Iterable[tuple[str, str | None]], width: int) -> Iterator[str]:
    """Format names and values in two columns."""
    shown = [(name, flatten_cell(value)) for name, value in facts]
    names = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        yield hanging_text(f"{name:<{names}}{_COLUMN_GAP}", value, width, indent=len(_INDENT))


def draw_screen(screen: Screen, width: int, height: int) -> "RenderableType":
    """Draw the panes and status at the top, the rows that fit, and the keys at the bottom."""
    from rich.console import Group  # noqa: PLC0415
    from rich.layout import Layout  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    head = Text(" ").join(
        Text(f" {at + 1} {name} ", "reverse bold" if at == screen.pane_index else "")
        for at, name in enumerate(screen.panes)
    )
    status = Text(clean_line(screen.status))
    gap = width - head.cell_len - status.cell_len
    head = head + Text(" " * gap) + status if gap > 0 else Text("\n").join((head, status))
    rule = Text("─" * width, "dim")
    row_count = max(1, height - _FRAME_LINES - (gap <= 0))
    table = screen.table
    if table is None:
        shown: RenderableType = Text("reading …")
    elif not table.rows:
        shown = Text("nothing here yet")
    else:
        table = attrs.evolve(table, rows=table.rows[:row_count])
        widths = _fit_widths(attrs.evolve(table, never_cut=frozenset()), width, _MIN_CUT_WIDTH)
        shown = _draw_grid(table, widths, single_line_cells=True)
    body = Layout(shown, name="body")
    layout = Layout()
    layout.split_column(
        Layout(Group(head, rule), size=2 + (gap <= 0)), body, Layout(Group(rule, Text(screen.keys_help)), size=2)
    )
    return layout


def _draw_grid(
    table: Table, widths: Sequence[int] | None, *, header: bool = True, style: str = "", single_line_cells: bool = False
) -> "RichTable":
    """Draw the table with these column widths. Without widths, rich chooses them and cuts cells that do not fit."""
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415

    drawn = RichTable(box=None, pad_edge=False, header_style="bold", show_header=header, style=style)
    for at, column in enumerate(table.columns):
        drawn.add_column(
            column,
            justify="right" if column in table.right_aligned else "left",
            overflow="ellipsis" if single_line_cells else "fold",
            no_wrap=single_line_cells,
            width=None if widths is None else widths[at],
        )
    for row in table.rows:
        drawn.add_row(*(escape(flatten_cell(cell)) for cell in row))
    return drawn


def flatten_cell(cell: str | None) -> str:
    """Return a cell as one line, so that text of third parties can neither forge rows nor control the terminal."""
    if cell is None:
        return _EMPTY_CELL
    return "".join(character if character.isprintable() else " " for character in cell)
