"""Rows of a conformance run, and the comparison of responses with the shapes of `common/api`."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import msgspec
from msgspec import inspect

from common.api.shapes import OMITTABLE
from common.checks import CheckResult, CheckRow, right, unknown, wrong
from common.refusal import Refused

_SHOWN: Final = 200  # characters of the received value


@attrs.define
class Report:
    """Rows of one run, in the order of the checks. A row's name is its area and the attempt."""

    rows: list[CheckRow] = attrs.field(factory=list)
    listeners: list[Callable[[CheckRow], None]] = attrs.field(factory=list)

    def judge(self, area: str, tried: str, expected: str, fault: str | None, page: str) -> None:
        """Add a right row, or a wrong one with the `fault` that came instead of `expected`."""
        what = f"{area}: {tried}"
        remedy = f"expected {expected}{f' ({page})' if page else ''}"
        self._add(right(what, expected) if fault is None else wrong(what, shortened(fault), remedy))

    def leave(self, area: str, tried: str, why: str, page: str) -> None:
        """Add an unknown row for what could not be tried."""
        self._add(unknown(f"{area}: {tried}", shortened(why), page and f"see {page}"))

    @property
    def wrong(self) -> list[CheckRow]:
        return self._with(CheckResult.WRONG)

    @property
    def right(self) -> list[CheckRow]:
        return self._with(CheckResult.RIGHT)

    @property
    def unknown(self) -> list[CheckRow]:
        return self._with(CheckResult.UNKNOWN)

    @property
    def holds(self) -> bool:
        """Return True if nothing is wrong and something was tried."""
        return not self.wrong and bool(self.right)

    def _with(self, result: CheckResult) -> list[CheckRow]:
        return [row for row in self.rows if row.result is result]

    def _add(self, row: CheckRow) -> None:
        self.rows.append(row)
        for listener in self.listeners:
            listener(row)


def tried(row: CheckRow) -> str:
    """Return a row's name without its area."""
    return row.what.partition(": ")[2]


def shortened(text: object) -> str:
    plain = str(text)
    return plain if len(plain) <= _SHOWN else f"{plain[: _SHOWN - 1]}…"


def refusal_of(read: Callable[[], object]) -> str | None:
    """Return why `read` refuses, or None."""
    try:
        read()
    except Refused as refusal:
        return refusal.code or refusal.message
    except (KeyError, TypeError, ValueError) as misfit:
        return f"{type(misfit).__name__}: {misfit}"
    return None


# --- answers against shapes ---


def misfit(value: object, shape: Any) -> str | None:
    """Describe where `value` differs from `shape`, or return None. Unknown members are ignored."""
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        return str(error)
    return next(_departures(value, inspect.type_info(shape), "$"), None)


def _departures(value: object, kind: inspect.Type, place: str) -> Iterator[str]:
    """What msgspec lets pass: members left out because they have a default, and text that misses a documented
    pattern."""
    if isinstance(kind, inspect.Metadata):
        pattern = (kind.extra_json_schema or {}).get("pattern")
        if isinstance(pattern, str) and isinstance(value, str) and not _matches(pattern, value):
            yield f"{place}: {shortened(repr(value))} does not match {pattern}"
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        yield from _of_union(value, kind, place)
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        if kind.tag_field is not None and value.get(kind.tag_field) != kind.tag:
            yield f"{place}: {kind.tag_field} is not {kind.tag}"
        for field in kind.fields:
            if field.encode_name in value:
                yield from _departures(value[field.encode_name], field.type, f"{place}.{field.encode_name}")
            elif not _omittable(field.type):
                yield f"{place}: {field.encode_name} is not there"
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        for at, item in enumerate(value):
            yield from _departures(item, kind.item_type, f"{place}[{at}]")


def _of_union(value: object, kind: inspect.UnionType, place: str) -> Iterator[str]:
    members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    if value is None:
        return
    for member in members:
        if isinstance(member, inspect.StructType) and member.tag is not None and isinstance(value, dict):
            if value.get(member.tag_field or "type") == member.tag:
                yield from _departures(value, member, place)
        else:
            yield from _departures(value, member, place)


def _omittable(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.Metadata) and bool((kind.extra_json_schema or {}).get(OMITTABLE))


def _matches(pattern: str, text: str) -> bool:
    """Match like JSON Schema: `$` is the end of the text, not the position before a final line break."""
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
