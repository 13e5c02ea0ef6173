"""Strict readers for the scalar values of the wire: integers, hex, base64.

Each value has one accepted spelling (hex digits excepted: EIP-55 gives mixed case a meaning, so any case is
read and lower case is written). What is looser than that lets two strings name one thing, and a check made
on the one is then bypassed with the other.
"""

import re
from collections.abc import Callable
from typing import Final

import pybase64

from common.keccak import keccak256
from common.refusal import Refused

MAX_SAFE_INTEGER: Final = 2**53 - 1
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)


def read_uint(value: object, bits: int, param: str) -> int:
    """An unsigned integer: a JSON number in the safe range, or a plain decimal string."""
    return uint_reader(bits)(value, param)


def uint_reader(bits: int) -> Callable[[object, str], int]:
    """`read_uint` for many values of one width: nearly every request and every line of a batch carries nine."""

    def read(value: object, param: str) -> int:
        if type(value) is str:
            if len(value) < 39 and value.isdigit() and value.isascii() and (value[0] != "0" or value == "0"):
                number = int(value)
                if not number >> bits:
                    return number
            return read_decimal(value, bits, param)
        return _read_number(value, bits, param)

    return read


def _read_number(value: object, bits: int, param: str) -> int:
    if type(value) is not int:  # a bool is an int to isinstance, and not to us
        raise Refused(f"{param} must be an integer or a decimal string", param)
    if value < 0 or value > MAX_SAFE_INTEGER:
        raise Refused(f"{param} must be in 0..2^53-1 as a number; use a decimal string above that", param)
    if value >> bits:
        raise Refused(f"{param} does not fit a uint{bits}", param)
    return value


def read_decimal(text: str, bits: int, param: str) -> int:
    """An unsigned integer written in plain decimal digits, as queries and strings carry it."""
    # The longest uint256 has 78 digits; a longer string is refused before int() spends time on it.
    if len(text) > 78 or not (text.isascii() and text.isdigit()) or (text[0] == "0" and len(text) > 1):
        raise Refused(f"{param} must be a decimal integer without sign or leading zeros", param)
    number = int(text)
    if number >> bits:
        raise Refused(f"{param} does not fit a uint{bits}", param)
    return number


def read_hex(value: object, length: int, param: str) -> bytes:
    """Exactly `length` bytes as 0x-prefixed hex."""
    return hex_reader(length)(value, param)


def hex_reader(length: int) -> Callable[[object, str], bytes]:
    """`read_hex` for many values of one length."""
    characters, from_hex = 2 + 2 * length, bytes.fromhex

    def read(value: object, param: str) -> bytes:
        if type(value) is str and len(value) == characters and value[:2] == "0x":
            try:
                raw = from_hex(value[2:])
            except ValueError:
                raw = b""
            # `fromhex` passes over spaces: then fewer bytes come out than digits fit.
            if len(raw) == length:
                return raw
        raise Refused(f"{param} must be 0x-prefixed hex of {length} bytes", param)

    return read


def read_bare_hex(value: object, length: int, param: str) -> bytes:
    """Exactly `length` bytes as hex without 0x."""
    if not isinstance(value, str) or len(value) != 2 * length or not _HEX.fullmatch(value):
        raise Refused(f"{param} must be hex of {length} bytes without 0x", param)
    return bytes.fromhex(value)


def read_hex_upto(value: object, longest: int, param: str) -> bytes:
    """At most `longest` bytes as 0x-prefixed hex; `0x` alone is no bytes."""
    if not isinstance(value, str) or not value.startswith("0x"):
        raise Refused(f"{param} must be 0x-prefixed hex", param)
    if len(value) > 2 + 2 * longest:  # before its digits are looked at: it may be a body's whole length
        raise Refused(f"{param} must be at most {longest} bytes", param)
    if not _HEX.fullmatch(value, 2):
        raise Refused(f"{param} must be 0x-prefixed hex", param)
    return bytes.fromhex(value[2:])


def read_base64(value: object, longest: int, param: str) -> bytes:
    """At most `longest` bytes as canonical padded base64 (standard alphabet)."""
    if not isinstance(value, str):
        raise Refused(f"{param} must be a base64 string", param)
    if len(value) > 4 * ((longest + 2) // 3):
        raise Refused(f"{param} must be at most {longest} bytes", param)
    try:
        decoded = pybase64.b64decode(value, validate=True)
    except ValueError:
        raise Refused(f"{param} must be canonical padded base64", param) from None
    # It still takes stray bits in the last digit: only a re-encoding of what it stands for proves the one spelling.
    last = (len(decoded) - 1) // 3 * 3 if decoded else 0
    if len(value) != 4 * ((len(decoded) + 2) // 3) or pybase64.b64encode_as_string(decoded[last:]) != value[-4:]:
        raise Refused(f"{param} must be canonical padded base64", param)
    if len(decoded) > longest:
        raise Refused(f"{param} must be at most {longest} bytes", param)
    return decoded


def hex_of(raw: bytes) -> str:
    """Lower-case 0x-prefixed hex."""
    return "0x" + raw.hex()


def checksummed(address: bytes) -> str:
    """An address in the mixed case of EIP-55, in which people are shown it: a typing error breaks its checksum."""
    digits = address.hex()
    digest = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) > 7 else digit for digit, nibble in zip(digits, digest, strict=False)
    )


def base64_of(raw: bytes) -> str:
    return pybase64.b64encode_as_string(raw)
