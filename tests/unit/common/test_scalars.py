import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.checks import check_json, check_lines, check_table, comparison_row, fact, right, unknown, wrong
from common.refusal import Refused
from common.scalars import (
    base64_of,
    checksum_address,
    hex_of,
    read_bare_hex,
    read_base64,
    read_decimal,
    read_hex,
    read_hex_upto,
    read_uint,
)
from tests.vectors.vector_file import cases

READERS = {
    "uint": lambda value, bits: str(read_uint(value, bits, "field")),
    "hex": lambda value, length: read_hex(value, length, "field").hex(),
    "bare_hex": lambda value, length: read_bare_hex(value, length, "field").hex(),
    "hex_upto": lambda value, longest: read_hex_upto(value, longest, "field").hex(),
    "base64": lambda value, longest: read_base64(value, longest, "field").hex(),
}
CASES = cases("scalars.json")


def read(case):
    return READERS[case["reader"]](json.loads(case["json"]), int(case["limit"]))


@pytest.mark.parametrize("case", [case for case in CASES if "read" in case], ids=lambda case: case["name"])
def test_the_one_spelling_of_a_value_is_read(case):
    assert read(case) == case["read"]


@pytest.mark.parametrize("case", [case for case in CASES if "refused" in case], ids=lambda case: case["name"])
def test_any_other_spelling_is_refused_and_names_the_field(case):
    with pytest.raises(Refused) as refusal:
        read(case)
    assert refusal.value.param == "field"


@given(st.text(max_size=80))
def test_decimal_is_accepted_only_in_canonical_form(text):
    try:
        number = read_decimal(text, 256, "field")
    except Refused:
        assert not (text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) < 2**256)
    else:
        assert str(number) == text


@given(st.binary(max_size=64))
def test_bytes_survive_writing_and_reading(value):
    assert read_hex(hex_of(value), len(value), "field") == value
    assert read_hex_upto(hex_of(value), 64, "field") == value
    assert read_base64(base64_of(value), 64, "field") == value


def test_length_of_hex_is_looked_at_before_its_digits() -> None:
    """A body may consist of hex digits only. Reading all of them would take a second before the body is rejected."""
    with pytest.raises(Refused, match="at most 64 bytes"):
        read_hex_upto("0x" + "zz" * 65, 64, "field")


@pytest.mark.parametrize(
    "written",  # the examples of EIP-55
    [
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "0xde709f2102306220921060314715629080e2fb77",
    ],
)
def test_addresses_are_written_with_the_checksum_of_eip_55(written: str) -> None:
    assert checksum_address(bytes.fromhex(written[2:])) == written


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
