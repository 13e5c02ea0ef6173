"""Strict readers for the scalar values of the wire: integers, hex, base64.

Each value has one accepted spelling (hex digits excepted: EIP-55 gives mixed case a meaning, so any case is
read and lower case is written). What is looser than that lets two strings name one thing, and a check made
on the one is then bypassed with the other.
"""

import base64
import binascii
import re
from typing import Final

from common.refusal import Refused

MAX_SAFE_INTEGER: Final = 2**53 - 1
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)


def read_uint(value: object, bits: int, param: str) -> int:
    """An unsigned integer: a JSON number in the safe range, or a plain decimal string."""
    if isinstance(value, str):
        # What nearly every request and every line of a batch carries many times over.
        if value.isdigit() and value.isascii() and len(value) < 39 and (value[0] != "0" or value == "0"):
            number = int(value)
            if not number >> bits:
                return number
        return read_decimal(value, bits, param)
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
    if isinstance(value, str) and len(value) == 2 + 2 * length and value.startswith("0x"):
        try:
            read = bytes.fromhex(value[2:])
        except ValueError:
            read = b""
        # `fromhex` passes over spaces: then fewer bytes come out than digits fit.
        if len(read) == length:
            return read
    raise Refused(f"{param} must be 0x-prefixed hex of {length} bytes", param)


def read_bare_hex(value: object, length: int, param: str) -> bytes:
    """Exactly `length` bytes as hex without 0x."""
    if not isinstance(value, str) or len(value) != 2 * length or not _HEX.fullmatch(value):
        raise Refused(f"{param} must be hex of {length} bytes without 0x", param)
    return bytes.fromhex(value)


def read_hex_upto(value: object, longest: int, param: str) -> bytes:
    """At most `longest` bytes as 0x-prefixed hex; `0x` alone is no bytes."""
    if not isinstance(value, str) or not value.startswith("0x") or not _HEX.fullmatch(value, 2):
        raise Refused(f"{param} must be 0x-prefixed hex", param)
    if len(value) > 2 + 2 * longest:
        raise Refused(f"{param} must be at most {longest} bytes", param)
    return bytes.fromhex(value[2:])


def read_base64(value: object, longest: int, param: str) -> bytes:
    """At most `longest` bytes as canonical padded base64 (standard alphabet)."""
    if not isinstance(value, str):
        raise Refused(f"{param} must be a base64 string", param)
    if len(value) > 4 * ((longest + 2) // 3):
        raise Refused(f"{param} must be at most {longest} bytes", param)
    try:
        decoded = binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Refused(f"{param} must be canonical padded base64", param) from None
    # strict_mode still takes stray bits in the last digit: only a re-encoding of what it stands for proves the one
    # spelling.
    last = (len(decoded) - 1) // 3 * 3 if decoded else 0
    if len(value) != 4 * ((len(decoded) + 2) // 3) or base64.b64encode(decoded[last:]).decode("ascii") != value[-4:]:
        raise Refused(f"{param} must be canonical padded base64", param)
    if len(decoded) > longest:
        raise Refused(f"{param} must be at most {longest} bytes", param)
    return decoded


def hex_of(raw: bytes) -> str:
    """Lower-case 0x-prefixed hex."""
    return "0x" + raw.hex()


def base64_of(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
