"""Mutants of the contracts' sources: each is one small fault in one line."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

_SWAPS: Final = (
    (r"(?<![<>=!])<(?![<=])", "<="),
    (r"(?<![<>=!-])>(?![>=])", ">="),
    (r"<=", "<"),
    (r">=", ">"),
    (r"==", "!="),
    (r"!=", "=="),
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r"(?<=[\w)\]] )\+(?= )", "-"),
    (r"(?<=[\w)\]] )-(?= )", "+"),
    (r"(?<=[\w)\]] )\*(?= )", "/"),
    (r"(?<=[\w)\]] )/(?= )", "*"),
    (r"\+=", "-="),
    (r"-=", "+="),
    (r"\+\+(?=[\w])", "--"),
    (r"--(?=[\w])", "++"),
    (r"(?<=[(\s])!(?=[\w])", ""),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\bonlyOwner\b", ""),
    (r"\bnonReentrant\b", ""),
    (r"\bwhenNotPaused\b", ""),
    (r"\bknown\(providerId\)", ""),
    (r"\bMath\.min\b", "Math.max"),
    (r"\bMath\.max\b", "Math.min"),
)
_NUMBER: Final = re.compile(r"(?<![\w.])(\d[\d_]*)(?![\w.])")
_STATEMENT: Final = re.compile(
    r"^\s+(?!return\b|uint|bytes|bool|address|string|mapping|using|error|event|import|\}).*;\s*$"
)
_SKIPPED: Final = re.compile(
    r"^\s*(//|///|\*|import|pragma|event|error|using|contract|abstract|library|interface|type )|TYPEHASH"
)
_FUNCTION: Final = re.compile(r"^\s*(?:function\s+(\w+)|(constructor)\b|(modifier)\b)")


@attrs.frozen
class Mutant:
    file: str
    function: str
    """Name of the function that contains the line, or empty."""
    line: int
    before: str
    after: str
    nth: int = 1
    """Number among equal lines of a function."""

    @property
    def key(self) -> str:
        """Return a name that stays the same when lines move."""
        place = f"{self.file}.{self.function}" if self.function else self.file
        again = f" ({self.nth})" if self.nth > 1 else ""
        return f"{place}: {self.before.strip()} -> {self.after.strip() or '(nothing)'}{again}"

    def applied(self, source: str) -> str:
        lines = source.split("\n")
        lines[self.line - 1] = self.after
        return "\n".join(lines)


def mutants_of(folder: Path, file: str) -> Iterator[Mutant]:
    lines = (folder / f"{file}.sol").read_text().split("\n")
    function = ""
    alike: Counter[tuple[str, str, str]] = Counter()
    for number, line in enumerate(lines, 1):
        code = line.split(" //")[0]
        begun = _FUNCTION.match(code)
        if begun:
            function = "" if code.rstrip().endswith(";") else next(filter(None, begun.groups()))
        elif line.startswith(("    }", "}")):
            function = ""
        if not code.strip() or _SKIPPED.match(code):
            continue
        for after in _faults(code):
            alike[function, code, after] += 1
            yield Mutant(file, function, number, code, after, alike[function, code, after])


def _faults(code: str) -> Iterator[str]:
    """Yield the line with each possible fault. An empty line is an omitted statement."""
    seen = {code}
    for after in _every_fault(code):
        if after not in seen:
            seen.add(after)
            yield after


def _every_fault(code: str) -> Iterator[str]:
    for pattern, replacement in _SWAPS:
        for found in re.finditer(pattern, code):
            yield code[: found.start()] + replacement + code[found.end() :]
    for found in _NUMBER.finditer(code):
        more = str(int(found[1].replace("_", "")) + 1)
        yield code[: found.start(1)] + more + code[found.end(1) :]
    if _STATEMENT.match(code) and code.count("(") == code.count(")"):
        yield ""
