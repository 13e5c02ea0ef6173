"""Match a path to its route.

A path is first split into segments. Then each segment is decoded once, so an encoded slash inside a segment never
changes the route. A rest segment (`{name...}`) may contain plain and encoded slashes.
"""

from typing import Final
from urllib.parse import unquote_to_bytes

import attrs

from coordinatord.http.routing import Route

_SLASH: Final = b"/"


@attrs.frozen(slots=True)
class Match:
    """Routes of a path by method, and the texts of the path's variable segments by name."""

    routes: dict[str, Route]
    segment_texts: dict[str, str]


@attrs.define(slots=True)
class _Template:
    segments: tuple[str, ...]
    routes: dict[str, Route]
    # Segments as bytes. Most clients send segments unescaped, so comparing the bytes usually saves the decoding.
    raw_segments: tuple[bytes, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.raw_segments = tuple(segment.encode() for segment in self.segments)

    def may_match_prefix(self, prefix: tuple[str, ...]) -> bool:
        # Not strict, because a template may have fewer segments than the prefix.
        pairs = zip(self.segments, prefix, strict=False)
        return all(own.startswith("{") or own == other for own, other in pairs)

    def match(self, raw: list[bytes]) -> dict[str, str] | None:
        segment_texts: dict[str, str] = {}
        for n, segment in enumerate(self.segments):
            if segment.endswith("...}"):
                rest = _SLASH.join(raw[n:])
                return {**segment_texts, segment[1:-4]: _decode_segment(rest)} if rest else None
            if n >= len(raw) or not raw[n]:
                return None
            if segment.startswith("{"):
                segment_texts[segment[1:-1]] = _decode_segment(raw[n])
            elif raw[n] != self.raw_segments[n] and _decode_segment(raw[n]) != segment:
                return None
        return segment_texts if len(raw) == len(self.segments) else None


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
        # Fixed segments sort before variable ones, so that no template hides a more specific template.
        self._templates = sorted(
            templates.values(), key=lambda t: [(s.endswith("...}"), s.startswith("{"), s) for s in t.segments]
        )
        # Templates by their first two segments. A path that begins with other segments is compared with all templates.
        self._by_prefix = {
            tuple(segment.encode() for segment in prefix): [t for t in self._templates if t.may_match_prefix(prefix)]
            for prefix in {t.segments[:2] for t in self._templates}
        }

    def match(self, raw_path: bytes) -> Match | None:
        exact = self._exact.get(raw_path)
        if exact is not None:
            return Match(exact, {})
        raw = raw_path.split(_SLASH)[1:]
        for template in self._by_prefix.get(tuple(raw[:2]), self._templates):
            segment_texts = template.match(raw)
            if segment_texts is not None:
                return Match(template.routes, segment_texts)
        return None


def _decode_segment(raw: bytes) -> str:
    """Decode a segment once. Return "" if the bytes are not UTF-8 or contain a NUL. The empty string matches no fixed
    segment."""
    try:
        text = (unquote_to_bytes(raw) if b"%" in raw else raw).decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text else text
