"""Compare two recordings, and report their differences by kind.

Within one seed (or one API test) and one subject, entries are compared as sets, so that neither another order nor one
more identical poll is a difference. An entry of one side is paired with the most similar entry of the same kind on the
other side, and the pair differs in fields. Entries without a partner are missing or new.

A kind is `only here` if its value occurs nowhere in the other recording. A kind is `moved` if the other recording has
the same value for another job or in another seed. A change of schedule moves values. A change of behaviour makes new
values.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.simulation.recorder.entries import Entry, read
from tests.simulation.recorder.normal import canonical

_NUMBERED: Final = re.compile(r"#\d+")
_EXAMPLE_CHARACTERS: Final = 240  # of each side
# Each of these is a fact that must not happen twice. The numbers of answers, streams and tables that only log requests
# depend on how often a client polled.
_COUNTED: Final = ("event", "transaction", "log", "promise")
_PAIRED_SHARE: Final = 0.5  # of equal fields, from which two entries are paired

_Group = tuple[str, str, str]  # section, subject, kind


@attrs.define
class Difference:
    """`unseen`: how many of `places` have a value that occurs nowhere in the other recording."""

    example: str
    places: list[str] = attrs.field(factory=list)
    unseen: int = 0


@attrs.define
class Comparison:
    found: dict[str, Difference] = attrs.field(factory=dict)
    identical: int = 0
    compared: int = 0
    order_only: list[str] = attrs.field(factory=list)
    repeats_only: Counter[str] = attrs.field(factory=Counter)

    def lines(self) -> Iterator[str]:
        for title, wanted in (("with values that only one recording has", True), ("with values that moved", False)):
            kinds = {kind: one for kind, one in self.found.items() if bool(one.unseen) == wanted}
            yield f"{len(kinds)} kinds of differences {title}"
            for kind, one in sorted(kinds.items(), key=lambda item: (-len(set(item[1].places)), item[0])):
                places = len(set(one.places))
                yield f"  {kind}: {len(one.places)} in {places} places, {one.unseen} of them unseen elsewhere"
                yield f"    {one.example}"
        yield (
            f"order only: {len(self.order_only)} subjects ({', '.join(self.order_only[:5])})"
            if self.order_only
            else "order only: none"
        )
        yield f"repeats only: {self.repeats_only.total()} entries of {len(self.repeats_only)} kinds"
        yield f"{self.identical} of {self.compared} seeds and tests are identical"


def compare(one: Path, other: Path) -> Comparison:
    """Compare two folders that `record` wrote."""
    sides = [{path.relative_to(folder): read(path) for path in folder.rglob("*.jsonl")} for folder in (one, other)]
    return compare_entries(*({str(path.with_suffix("")): entries for path, entries in side.items()} for side in sides))


def compare_entries(a: Mapping[str, Sequence[Entry]], b: Mapping[str, Sequence[Entry]]) -> Comparison:
    result = Comparison()
    everywhere = _values(a), _values(b)
    for place in sorted(a.keys() | b.keys()):
        result.compared += 1
        if place not in a or place not in b:
            _add(result, f"{place.partition('/')[0]}: not recorded", place, f"in {place}", unseen=True)
        elif a[place] == b[place]:
            result.identical += 1
        else:
            _compare_place(result, place, (a[place], b[place]), everywhere)
    return result


def _compare_place(
    result: Comparison,
    place: str,
    sides: tuple[Sequence[Entry], Sequence[Entry]],
    everywhere: tuple[set[str], set[str]],
) -> None:
    groups = [_grouped(side) for side in sides]
    changed = set()
    for group in sorted(groups[0].keys() | groups[1].keys()):
        section, subject, kind = group
        counts = [Counter(map(canonical, side.get(group, ()))) for side in groups]
        if counts[0] == counts[1]:
            continue
        changed.add(subject)
        values = {canonical(value): value for side in groups for value in side.get(group, ())}
        gone, new = sorted(counts[0].keys() - counts[1].keys()), sorted(counts[1].keys() - counts[0].keys())
        where = f"{place} {subject}"
        for was, now in _pairs(gone, new, values):
            unseen = _anonymous(group, was) not in everywhere[1] or _anonymous(group, now) not in everywhere[0]
            for field, before, after in _fields(values[was], values[now]):
                example = f"{where}: {_short(before)} → {_short(after)}"
                _add(result, f"{section} {kind} {field}", place, example, unseen=unseen)
        for title, left, seen in (("missing", gone, everywhere[1]), ("new", new, everywhere[0])):
            for text in left:
                unseen = _anonymous(group, text) not in seen
                _add(result, f"{section} {kind} is {title}", place, f"{where}: {_short(values[text])}", unseen=unseen)
        for text in counts[0].keys() & counts[1].keys():
            more = counts[1][text] - counts[0][text]
            if more and section in _COUNTED:
                times = f"{where}: {counts[0][text]} → {counts[1][text]} times {_short(values[text])}"
                _add(result, f"{section} {kind} another number of times", place, times, unseen=False)
            elif more:
                result.repeats_only[f"{section} {kind}"] += abs(more)
    orders = [_orders(side) for side in sides]
    result.order_only += [
        f"{place} {subject}" for subject in orders[0].keys() - changed if orders[0][subject] != orders[1].get(subject)
    ]


def _add(result: Comparison, kind: str, place: str, example: str, *, unseen: bool) -> None:
    difference = result.found.setdefault(kind, Difference(example))
    if unseen and not difference.unseen:
        difference.example = example
    difference.places.append(place)
    difference.unseen += unseen


def _grouped(entries: Iterable[Entry]) -> dict[_Group, list[Any]]:
    groups: defaultdict[_Group, list[Any]] = defaultdict(list)
    for entry in entries:
        groups[entry.section, entry.subject, entry.kind].append(entry.value)
    return groups


def _orders(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """Return each subject's entries in order, without consecutive duplicates."""
    orders: defaultdict[str, list[str]] = defaultdict(list)
    for entry in entries:
        line = entry.line()
        if orders[entry.subject][-1:] != [line]:
            orders[entry.subject].append(line)
    return orders


def _values(recording: Mapping[str, Sequence[Entry]]) -> set[str]:
    return {
        _anonymous((entry.section, entry.subject, entry.kind), canonical(entry.value))
        for entries in recording.values()
        for entry in entries
    }


def _anonymous(group: _Group, value: str) -> str:
    """Replace numbers of jobs and accounts, so that equal facts about different jobs compare equal."""
    return _NUMBERED.sub("#", f"{group[0]} {group[2]} {value}")


def _pairs(gone: list[str], new: list[str], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the most similar pairs, and remove them from both lists."""
    flat = {text: dict(_flat(values[text])) for text in (*gone, *new)}
    alike = sorted(
        ((_likeness(flat[was], flat[now]), was, now) for was in gone for now in new),
        key=lambda one: (-one[0], *one[1:]),
    )
    for likeness, was, now in alike:
        if likeness >= _PAIRED_SHARE and was in gone and now in new:
            gone.remove(was)
            new.remove(now)
            yield was, now


def _likeness(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    same = sum(path in other and other[path] == value for path, value in one.items())
    return same / max(len(one), len(other), 1)


def _fields(was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    one, other = dict(_flat(was)), dict(_flat(now))
    for path in sorted(one.keys() | other.keys()):
        before, after = one.get(path, "<absent>"), other.get(path, "<absent>")
        if before != after:
            yield path, before, after


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _flat(one, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for number, one in enumerate(value):
            yield from _flat(one, f"{path}[{number}]")
    else:
        yield path, value


def _short(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[:_EXAMPLE_CHARACTERS] + "…"
