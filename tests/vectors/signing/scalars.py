"""Integers, hex and base64 in JSON, and how a strict reader reads them."""

import json
from typing import Any

from tests.vectors.vector_file import Case

U64, U128, U256 = 2**64 - 1, 2**128 - 1, 2**256 - 1

# reader: (limit, value as JSON text or as a value to serialise, the value that is read)
ACCEPTED: dict[str, list[tuple[int, Any, str]]] = {
    "uint": [
        (32, 0, "0"),
        (32, "0", "0"),
        (32, 2**32 - 1, str(2**32 - 1)),
        (32, str(2**32 - 1), str(2**32 - 1)),
        (64, 2**53 - 1, str(2**53 - 1)),
        (64, str(2**53), str(2**53)),
        (64, str(U64), str(U64)),
        (128, str(U128), str(U128)),
        (256, str(U256), str(U256)),
    ],
    "hex": [(4, "0xdeadbeef", "deadbeef"), (4, "0xDeadBeeF", "deadbeef"), (0, "0x", "")],
    "bare_hex": [(4, "deadbeef", "deadbeef"), (4, "DEADBEEF", "deadbeef")],
    "hex_upto": [(2, "0x", ""), (2, "0x01", "01"), (2, "0x0102", "0102")],
    "base64": [(3, "", ""), (3, "AA==", "00"), (3, "AAE=", "0001"), (3, "+/+/", "fbffbf")],
}

# reader: failure: (limit, values). A value with several faults fails with the first of these: type, spelling, size.
REFUSED: dict[str, dict[str, list[tuple[int, list[Any]]]]] = {
    "uint": {
        "wrong_type": [(64, [1.0, 1e3, 0.5, -0.0, True, False, None, [1], {"1": 1}])],
        "spelling": [
            (
                64,
                [
                    "-1",
                    "-0",
                    "+1",
                    "01",
                    "00",
                    "1_000",
                    "1,000",
                    "",
                    " 1",
                    "1\n",
                    "1\0",
                    "0x10",
                    "1e3",
                    "1.0",
                ],
            ),
            (64, ["١٢", "１２", "²"]),  # str.isdigit() and int() of some languages accept these digits
        ],
        "out_of_range": [
            (64, [-1, 2**53, str(U64 + 1)]),
            (32, [2**32, str(2**32)]),
            (128, [str(U128 + 1)]),
            (256, [str(U256 + 1), "1" + "0" * 78]),
        ],
    },
    "hex": {
        "wrong_type": [(4, [3735928559, None])],
        "spelling": [
            (
                4,
                [
                    "deadbeef",
                    "0Xdeadbeef",
                    "0xdeadbee",
                    "0xdeadbeeg",
                    "0xdeadbe ef",
                    "0xdead be",
                    "0xdeadbee\n",
                ],
            ),
            (4, ["0xdead٠٠٠٠", "0xdead_eef"]),
        ],
        "length": [(4, ["0xdeadbe", "0xdeadbeef00", "0x"])],
    },
    "bare_hex": {
        "wrong_type": [(4, [12345678, None])],
        "spelling": [(4, ["0xdeadbeef", "0xdeadbe", "dead be ", "deadbee"])],
        "length": [(4, ["deadbe", "deadbeef00", ""])],
    },
    "hex_upto": {
        "wrong_type": [(2, [1, None])],
        "spelling": [(2, ["", "0x012", "0x0g", "01"])],
        "length": [(2, ["0x010203"])],
    },
    "base64": {
        "wrong_type": [(3, [1234, None])],
        "spelling": [
            (3, ["AB==", "AAF="]),  # stray bits in the last digit
            (3, ["AA", "AA=", "AA==AAAA", "AAAA====", "=", "-_-_", " AAA", "AAA\n", "AAА="]),
        ],
        "length": [(3, ["AAAAAA=="]), (2, ["AAAA"])],
    },
}


def cases() -> list[Case]:
    made: list[Case] = []
    for reader, accepted in ACCEPTED.items():
        for limit, value, read in accepted:
            made.append(_case(reader, limit, value) | {"read": read})
    for reader, failures in REFUSED.items():
        for failure, refused in failures.items():
            made += [
                _case(reader, limit, value) | {"refused": failure} for limit, values in refused for value in values
            ]
    return made


def _case(reader: str, limit: int, value: Any) -> Case:
    # As text, because many parsers read 1.0 as the integer 1, and 2^53 + 1 as 2^53.
    text = json.dumps(value, ensure_ascii=False)
    return {"name": f"{reader} {limit}: {text}", "reader": reader, "limit": str(limit), "json": text}
