import json

from common.checks import check_json, check_lines, check_table, comparison_row, fact, right, unknown, wrong


def test_table_marks_rows_and_names_the_wrong_ones() -> None:
    rows = [right("node", "answers"), wrong("role", "none", "grant it"), fact("escrow", "off"), unknown("gateway", "?")]
    assert check_table(rows).splitlines() == [
        "right    node     answers",
        "WRONG    role     none: grant it",
        "         escrow   off",
        "unknown  gateway  ?",
        "1 wrong: role; 1 unknown",
    ]
    assert check_table([right("node", "answers")]).splitlines()[-1] == "nothing is wrong"
    assert check_table([]) == "nothing is wrong"
    assert json.loads(check_json(rows))[1:3] == [
        {"what": "role", "result": "WRONG", "detail": "none", "remedy": "grant it"},
        {"what": "escrow", "result": None, "detail": "off", "remedy": ""},
    ]


def test_compared_values_that_differ_are_both_shown() -> None:
    rows = [
        comparison_row("fee", 250, 250),
        comparison_row("paused", True, False),
        comparison_row("windows", {300, 60}, ()),
    ]
    assert check_lines(rows).splitlines() == [
        "right    fee      250",
        "WRONG    paused   yes (expected no)",
        "WRONG    windows  60, 300 (expected none)",
    ]


def test_long_names_are_wrapped_with_their_text() -> None:
    shown = check_lines([right("a", "1"), right("the code at an address", "two words")], 30)
    assert shown.splitlines() == [
        "right    a                1",
        "right    the code at an",
        "         address  two words",
    ]
