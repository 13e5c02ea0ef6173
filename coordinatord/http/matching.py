"""Match a path to its route.

Paths are matched by their raw segments, each decoded once. An encoded slash inside a segment never changes the route,
and a rest (`{name...}`) may hold slashes in either form.
"""

from typing import Final
from urllib.parse import unquote_to_bytes

import attrs

from coordinatord.http.routing import Route

_SLASH: Final = b"/"


@attrs.frozen(slots=True)
class Match:
    """Routes of a path by method, and the texts of its variable segments."""

    routes: dict[str, Route]
    texts: dict[str, str]


@attrs.define(slots=True)
class _Template:
    segments: tuple[str, ...]
    routes: dict[str, Route]
    # The segments in their usual encoding.
    spelt: tuple[bytes, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.spelt = tuple(segment.encode() for segment in self.segments)

    def may_begin(self, beginning: tuple[str, ...]) -> bool:
        return all(
            mine.startswith("{") or mine == theirs
            # A rest segment may be the whole template.
            for mine, theirs in zip(self.segments, beginning, strict=False)
        )

    def match(self, raw: list[bytes]) -> dict[str, str] | None:
        texts: dict[str, str] = {}
        for n, segment in enumerate(self.segments):
            if segment.endswith("...}"):
                rest = _SLASH.join(raw[n:])
                return {**texts, segment[1:-4]: _decode_segment(rest)} if rest else None
            if n >= len(raw) or not raw[n]:
                return None
            if segment.startswith("{"):
                texts[segment[1:-1]] = _decode_segment(raw[n])
            elif raw[n] != self.spelt[n] and _decode_segment(raw[n]) != segment:
                return None
        return texts if len(raw) == len(self.segments) else None


class Matcher:
    def __init__(self, routes: list[Route]) -> None:
        self._exact: dict[bytes, dict[str, Route]] = {}
        templates: dict[tuple[str, ...], _Template] = {}
        for route in routes:
            segments = tuple(route.path.split("/")[1:])
            if "{" in route.path:
                templates.setdefault(segments, _Template(segments, {})).routes[route.method] = route
            else:
                self._exact.setdefault(route.path.encode(), {})[route.method] = route
        # Fixed segments sort before variable ones, so that a template never hides a more specific one.
        self._templates = sorted(
            templates.values(), key=lambda t: [(s.endswith("...}"), s.startswith("{"), s) for s in t.segments]
        )
        # Index by the first two segments. A path in an unusual encoding is compared with all templates.
        self._by_beginning = {
            tuple(segment.encode() for segment in beginning): [t for t in self._templates if t.may_begin(beginning)]
            for beginning in {t.segments[:2] for t in self._templates}
        }

    def match(self, raw_path: bytes) -> Match | None:
        exact = self._exact.get(raw_path)
        if exact is not None:
            return Match(exact, {})
        raw = raw_path.split(_SLASH)[1:]
        for template in self._by_beginning.get(tuple(raw[:2]), self._templates):
            texts = template.match(raw)
            if texts is not None:
                return Match(template.routes, texts)
        return None


def _decode_segment(raw: bytes) -> str:
    """Decode a segment once. Return "" for bytes that are not UTF-8 or contain a NUL, which match nothing."""
    try:
        text = (unquote_to_bytes(raw) if b"%" in raw else raw).decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text else text
