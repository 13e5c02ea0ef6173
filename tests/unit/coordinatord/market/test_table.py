from coordinatord.market.rows import as_json, checked, table, told


def test_wrong_row_says_what_was_expected() -> None:
    rows = [
        checked("fee", 250, 250),
        checked("paused", True, False),
        told("block", 7),
        checked("windows", {300, 60}, ()),
    ]
    assert table(rows).splitlines() == [
        "right  fee      250",
        "WRONG  paused   yes   (expected: no)",
        "       block    7",
        "WRONG  windows  60, 300   (expected: none)",
    ]
    assert [row["right"] for row in as_json(rows)] == [True, False, None, False]
