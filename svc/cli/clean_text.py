"""Text of third parties, with everything visible that a terminal would obey instead of showing.

    C0, DEL and C1 controls     move the cursor, set colours; OSC and similar set the clipboard and the title
    bidi controls               show text in another order than it is stored in
    zero-width and other        are invisible: tags, joiners, soft hyphens, line separators
    format characters
    surrogates                  are not text, and cannot be written

Each becomes its escape, `\\x1b` or `\\u202e`, so nothing is lost and nothing is obeyed.
"""

import unicodedata
from typing import Final

_KEPT: Final = frozenset("\n\t")
_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def cleaned(text: str) -> str:
    r"""Lines stay lines.

    >>> cleaned("to \x1b]52;c;bHM=\x07 and \u202egpj.exe")
    'to \\x1b]52;c;bHM=\\x07 and \\u202egpj.exe'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(sign) if _obeyed(sign) and sign not in _KEPT else sign for sign in text)


def cleaned_json(text: str) -> str:
    r"""The same of JSON text, which stays JSON of the same value: only strings hold such signs.

    >>> cleaned_json('{"a": "\u202e"}')
    '{"a": "\\u202e"}'
    """
    return "".join(_json_escape(sign) if _obeyed(sign) and sign not in _KEPT else sign for sign in text)


def one_line(text: str) -> str:
    """For a message: not even its line breaks are obeyed, which could forge another one."""
    return cleaned(text).replace("\n", "\\n").replace("\t", " ")


def _obeyed(sign: str) -> bool:
    return not (" " <= sign <= "~") and unicodedata.category(sign) in _CATEGORIES


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
