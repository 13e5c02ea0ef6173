"""Plain-text tables on terminals of several widths and in a pipe."""

from common.text_table import grid_lines, hanging_text

ADDRESS = "0x" + "ab" * 20
ROWS = [("signer", "kind", "gas, this hour", "gas, 24 hours"), (ADDRESS, "request_capacity", "1,000,000", "22,000,000")]


def test_grid_that_fits_has_a_line_for_each_row() -> None:
    assert grid_lines(ROWS, 120, right_aligned={2, 3}) == grid_lines(ROWS, None, right_aligned={2, 3})
    assert len(grid_lines(ROWS, 120, right_aligned={2, 3})) == len(ROWS)


def test_grid_too_wide_puts_the_first_cell_above_the_rest() -> None:
    assert grid_lines(ROWS, 80, right_aligned={2, 3}) == [
        "signer",
        "  kind              gas, this hour  gas, 24 hours",
        ADDRESS,
        "  request_capacity       1,000,000     22,000,000",
    ]


def test_text_is_wrapped_below_its_own_beginning() -> None:
    head = "right  gas                "
    lines = hanging_text(head, "a block holds 60,000,000; a transaction takes 16,777,216 at most", 60).splitlines()
    assert lines[0].startswith(head)
    assert all(line.startswith(" " * len(head)) and len(line) <= 60 for line in lines[1:])


def test_word_too_long_for_its_column_stays_whole() -> None:
    key = "fc" * 32
    assert hanging_text("right  escrow keys          ", f"announced is {key}", 80, 7).splitlines() == [
        "right  escrow keys",
        "       announced is",
        f"       {key}",
    ]
