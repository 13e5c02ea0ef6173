"""Escape control and invisible characters in text from third parties, so that they cannot control the terminal.

    C0, DEL and C1 controls     move the cursor, set colours; OSC and others set the clipboard and the title
    bidi controls               show text in another order than it is stored
    zero-width and other        are invisible: tags, joiners, soft hyphens, line separators
    format characters
    surrogates                  cannot be written

Each of these characters is replaced by its escape, such as `\\x1b` or `\\u202e`, so that no information is lost.
"""

import unicodedata
from typing import Final

_ALLOWED_CONTROLS: Final = frozenset("\n\t")
_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: str) -> str:
    r"""Escape control and invisible characters. Line breaks and tabs stay.

    >>> clean("to \x1b]52;c;bHM=\x07 and \u202egpj.exe")
    'to \\x1b]52;c;bHM=\\x07 and \\u202egpj.exe'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(character) if _is_control(character) and character not in _ALLOWED_CONTROLS else character
        for character in text
    )


def clean_json(text: str) -> str:
    r"""Escape control and invisible characters in JSON. Only strings contain them, so the JSON value stays the same.

    >>> clean_json('{"a": "\u202e"}')
    '{"a": "\\u202e"}'
    """
    return "".join(
        _json_escape(character) if _is_control(character) and character not in _ALLOWED_CONTROLS else character
        for character in text
    )


def clean_line(text: str) -> str:
    """Clean a message and escape its line breaks, which could forge another message."""
    return clean(text).replace("\n", "\\n").replace("\t", " ")


def _is_control(character: str) -> bool:
    return not (" " <= character <= "~") and unicodedata.category(character) in _UNSAFE_CATEGORIES


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
