"""Entries of a recording, and how an HTTP exchange is split into entries.

An entry has a section (answer, stream, event, transaction, log, table, promise), a subject (`job#2`, or
"-" without a job or batch), a kind within its section, and a normalised value.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from tests.simulation.recorder.normal import Normaliser, canonical

_SUBJECT: Final = re.compile(r"\b(?:job|batch)#\d+")
_HEADERS: Final = re.compile(
    "x-svc-.*|x-request-id|content-type|retry-after|etag|cache-control|location|www-authenticate|preference-applied"
    "|content-disposition|allow|access-control-.*"
)
_SEGMENT: Final = re.compile(r"[^/]*[<#][^/]*")


@attrs.frozen
class Entry:
    section: str
    subject: str
    kind: str
    value: Any

    @classmethod
    def about(cls, section: str, kind: str, value: Any, *, otherwise: str = "-") -> "Entry":
        found = _SUBJECT.search(canonical(value))
        return cls(section, found[0] if found else otherwise, kind, value)

    def line(self) -> str:
        return canonical(attrs.asdict(self))


def write(path: Path, entries: Iterable[Entry]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(entry.line() + "\n" for entry in entries))


def read(path: Path) -> list[Entry]:
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()]


@attrs.frozen
class Exchanged:
    """A request and its complete answer as transmitted. A stream's answer is everything until it was closed."""

    method: str
    path: str  # with its query
    sent: bytes
    status: int
    headers: Mapping[str, str]
    body: bytes


def entries_of(exchanged: Exchanged, normal: Normaliser) -> Iterator[Entry]:
    """Yield an entry for the answer. Each row of a list and each event of a stream is a separate entry, so one
    changed row is one difference."""
    path, _, query = exchanged.path.partition("?")
    path = "/".join(map(normal.text, path.split("/")))
    route = _SEGMENT.sub("{id}", path)
    named = _SUBJECT.search(path)
    subject = named[0] if named else "-"
    headers = {name.lower(): said for name, said in exchanged.headers.items() if _HEADERS.fullmatch(name.lower())}
    media = headers.get("content-type", "").partition(";")[0]
    kind = f"{exchanged.method} {route} {exchanged.status}"
    if media == "text/event-stream":
        for frame in re.split(r"\r?\n\r?\n", exchanged.body.decode())[:-1]:
            if event := _frame(frame, normal):
                yield Entry.about("stream", f"{kind} {event.pop('event')}", event, otherwise=subject)
        body: Any = "<stream>"
    else:
        body = _body(exchanged.body, media)
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        kind += f" {normal.text(str(body['error'].get('code') or body['error'].get('type')))}"
    rows = []
    if isinstance(body, dict):
        lists = {
            name: one for name, one in body.items() if isinstance(one, list) and any(isinstance(r, dict) for r in one)
        }
        rows = [(name, row) for name, one in lists.items() for row in one]
        body = {**body, **{name: ["…"] for name in lists}, **{n: ["…"] for n, one in body.items() if one == []}}
    elif isinstance(body, list):
        rows, body = [("", row) for row in body], ["…"]
    value = normal.entry(
        {
            "request": _asked(exchanged, query),
            "headers": {**headers, "x-request-id": "x-request-id" in headers},
            "body": body,
        }
    )
    yield Entry.about("answer", kind, {**value, "path": path}, otherwise=subject)
    for name, row in rows:
        yield Entry.about("answer", f"{kind} {name}[]", normal.entry(row), otherwise=subject)


def _asked(exchanged: Exchanged, query: str) -> Any:
    try:
        body = json.loads(exchanged.sent)
    except ValueError:
        body = bool(exchanged.sent)
    return {"body": body, "query": sorted(query.split("&")) if query else []}


def _body(body: bytes, media: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in body.decode().splitlines()]
    except ValueError:
        return body.decode() if media.startswith("text/") and len(body) < 1000 else f"<{media}>"


def _frame(frame: str, normal: Normaliser) -> dict[str, Any]:
    """Return one server-sent event. Return an empty mapping for a comment, which only keeps the connection open."""
    fields = dict(line.split(": ", 1) for line in frame.splitlines() if ": " in line and not line.startswith(":"))
    if "data" not in fields:
        return {}
    data = _body(fields["data"].encode(), "")
    if isinstance(data, dict):
        data.pop("id", None)  # the number of events so far
    return {"event": fields.get("event", "message"), "data": normal.entry(data)}
