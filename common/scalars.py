"""Strict readers of scalar values: integers, hex, base64.

Each value has exactly one accepted spelling, so an attacker cannot bypass a check with another spelling of the same
value. Hex digits are the exception: EIP-55 gives mixed case a meaning, so readers accept any case.
"""

import re
from collections.abc import Callable
from typing import Final

import pybase64

from common.keccak import keccak256
from common.refusal import Refused

MAX_SAFE_INTEGER: Final = 2**53 - 1
_HEX_PATTERN: Final = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)


def read_uint(value: object, bits: int, param: str) -> int:
    """Read an unsigned integer: a JSON number in the safe range, or a plain decimal string."""
    return uint_reader(bits)(value, param)


def uint_reader(bits: int) -> Callable[[object, str], int]:
    """Return a function like `read_uint` for one width. The function is faster than `read_uint` for many values."""

    def read(value: object, param: str) -> int:
        if type(value) is str:
            if len(value) < 39 and value.isdigit() and value.isascii() and (value[0] != "0" or value == "0"):
                number = int(value)
                if not number >> bits:
                    return number
            return read_decimal(value, bits, param)
        return _read_json_number(value, bits, param)

    return read


def _read_json_number(value: object, bits: int, param: str) -> int:
    if type(value) is not int:  # isinstance would accept a bool
        raise Refused(f"{param} must be an integer or a decimal string", param)
    if value < 0 or value > MAX_SAFE_INTEGER:
        raise Refused(
            f"{param} must be in 0..2^53-1 if it is a JSON number; send a larger value as a decimal string", param
        )
    if value >> bits:
        raise Refused(f"{param} does not fit a uint{bits}", param)
    return value


def read_decimal(text: str, bits: int, param: str) -> int:
    """Read an unsigned integer in plain decimal digits."""
    # The longest uint256 has 78 digits. Refuse longer strings before int(), which takes quadratic time.
    if len(text) > 78 or not (text.isascii() and text.isdigit()) or (text[0] == "0" and len(text) > 1):
        raise Refused(f"{param} must be a decimal integer without sign or leading zeros", param)
    number = int(text)
    if number >> bits:
        raise Refused(f"{param} does not fit a uint{bits}", param)
    return number


def read_hex(value: object, length: int, param: str) -> bytes:
    """Read exactly `length` bytes from 0x-prefixed hex."""
    return hex_reader(length)(value, param)


def hex_reader(length: int) -> Callable[[object, str], bytes]:
    """Return a function like `read_hex` for one length. The function is faster than `read_hex` for many values."""
    characters, from_hex = 2 + 2 * length, bytes.fromhex

    def read(value: object, param: str) -> bytes:
        if type(value) is str and len(value) == characters and value[:2] == "0x":
            try:
                raw = from_hex(value[2:])
            except ValueError:
                raw = b""
            # `fromhex` skips spaces, and then returns fewer bytes.
            if len(raw) == length:
                return raw
        raise Refused(f"{param} must be 0x-prefixed hex of {length} bytes", param)

    return read


def read_bare_hex(value: object, length: int, param: str) -> bytes:
    """Read exactly `length` bytes from hex without 0x."""
    if not isinstance(value, str) or len(value) != 2 * length or not _HEX_PATTERN.fullmatch(value):
        raise Refused(f"{param} must be hex of {length} bytes without 0x", param)
    return bytes.fromhex(value)


def read_hex_upto(value: object, max_bytes: int, param: str) -> bytes:
    """Read at most `max_bytes` bytes from 0x-prefixed hex. `0x` alone means no bytes."""
    if not isinstance(value, str) or not value.startswith("0x"):
        raise Refused(f"{param} must be 0x-prefixed hex", param)
    if len(value) > 2 + 2 * max_bytes:  # check before the digits: the value may be as long as a request body
        raise Refused(f"{param} must be at most {max_bytes} bytes", param)
    if not _HEX_PATTERN.fullmatch(value, 2):
        raise Refused(f"{param} must be 0x-prefixed hex", param)
    return bytes.fromhex(value[2:])


def read_base64(value: object, max_bytes: int, param: str) -> bytes:
    """Read at most `max_bytes` bytes from canonical padded base64 (standard alphabet)."""
    if not isinstance(value, str):
        raise Refused(f"{param} must be a base64 string", param)
    if len(value) > 4 * ((max_bytes + 2) // 3):
        raise Refused(f"{param} must be at most {max_bytes} bytes", param)
    try:
        decoded = pybase64.b64decode(value, validate=True)
    except ValueError:
        raise Refused(f"{param} must be canonical padded base64", param) from None
    # The decoder ignores stray bits in the last digit. Encode the last group again to reject them.
    last = (len(decoded) - 1) // 3 * 3 if decoded else 0
    if len(value) != 4 * ((len(decoded) + 2) // 3) or pybase64.b64encode_as_string(decoded[last:]) != value[-4:]:
        raise Refused(f"{param} must be canonical padded base64", param)
    if len(decoded) > max_bytes:
        raise Refused(f"{param} must be at most {max_bytes} bytes", param)
    return decoded


def hex_of(raw: bytes) -> str:
    """Return lower-case 0x-prefixed hex."""
    return "0x" + raw.hex()


def checksum_address(address: bytes) -> str:
    """Return an address in the mixed case of EIP-55, which detects typing errors."""
    digits = address.hex()
    digest = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) > 7 else digit for digit, nibble in zip(digits, digest, strict=False)
    )


def base64_of(raw: bytes) -> str:
    return pybase64.b64encode_as_string(raw)
