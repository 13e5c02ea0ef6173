"""Assemble an answer from the events of a streaming server.

`Assembler.answer` returns the body that the server would have sent without streaming, or None while the stream is
incomplete. `event_count` counts the events with output, and is close to the number of tokens.
"""

import re
from typing import Final, Protocol

import attrs

from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import error_code, error_for_status
from svcd.base.end_reasons import WorkFailed

FINAL_EVENTS: Final = ("response.completed", "response.incomplete", "response.failed")

_HTTP_STATUS_PATTERN: Final = re.compile(r"[0-9]{3}", re.ASCII)


class Assembler(Protocol):
    @property
    def event_count(self) -> int: ...

    def add_event(self, event: dict[str, object]) -> None:
        """Add an event. Raise `WorkFailed` or `TryAgain` for an error event."""
        ...

    def end(self) -> None:
        """Record the server's end marker."""
        ...

    def answer(self) -> dict[str, object] | None: ...


@attrs.define(slots=True)
class ResponsesAssembler:
    """Assembler of `/v1/responses`. The last event has the whole answer, so events with a part are only counted."""

    event_count: int = 0
    _answer: dict[str, object] | None = None

    def add_event(self, event: dict[str, object]) -> None:
        kind = str(event.get("type", ""))
        if kind.endswith(".delta"):
            self.event_count += 1
        elif kind == "error":
            raise _stream_error(event)
        elif kind in FINAL_EVENTS:
            answer = event.get("response")
            if not isinstance(answer, dict):
                raise TryAgain(f"the event {kind} has no response")
            if kind == "response.failed":
                raise _stream_error(answer)
            self._answer = answer

    def end(self) -> None:
        pass

    def answer(self) -> dict[str, object] | None:
        return self._answer


@attrs.define(slots=True)
class _Choice:
    message: dict[str, object] = attrs.field(factory=dict)
    other_members: dict[str, object] = attrs.field(factory=dict)  # such as finish_reason and logprobs


@attrs.define(slots=True)
class ChatAssembler:
    """Assembler of `/v1/chat/completions`. It joins texts, and merges tool calls by index."""

    event_count: int = 0
    _chunk_members: dict[str, object] = attrs.field(factory=dict)
    _choices: dict[int, _Choice] = attrs.field(factory=dict)
    _ended: bool = False

    def add_event(self, event: dict[str, object]) -> None:
        if event.get("error"):
            raise _stream_error(event)
        try:
            self._add_chunk(event)
        except RecursionError:
            raise TryAgain("a chunk of the stream nests too deep") from None

    def _add_chunk(self, event: dict[str, object]) -> None:
        # Keep the newest `usage`: some servers send it in a last chunk without choices, and others in each chunk.
        self._chunk_members |= {key: value for key, value in event.items() if key != "choices" and value is not None}
        choices = event.get("choices")
        for chunk in choices if isinstance(choices, list) else ():
            if isinstance(chunk, dict):
                self._add_choice(chunk)

    def _add_choice(self, chunk: dict[str, object]) -> None:
        index = chunk.get("index", 0)
        choice = self._choices.setdefault(index if isinstance(index, int) else 0, _Choice())
        for key, value in chunk.items():
            if key == "delta" and isinstance(value, dict):
                self.event_count += any(inner for name, inner in value.items() if name != "role")
                _merge_delta(choice.message, value)
            elif key not in ("delta", "index") and value is not None:
                _merge_delta(choice.other_members, {key: value})

    def end(self) -> None:
        self._ended = True

    def answer(self) -> dict[str, object] | None:
        finished = all("finish_reason" in choice.other_members for choice in self._choices.values())
        if not self._choices or not (self._ended or finished):
            return None
        try:
            choices = _to_plain_json(self._joined_choices())
        except RecursionError:
            raise TryAgain("the answer nests too deep") from None
        return self._chunk_members | {"object": "chat.completion", "choices": choices}

    def _joined_choices(self) -> list[dict[str, object]]:
        return [
            {
                "index": index,
                "message": {"role": "assistant", "content": None, **choice.message},
                **choice.other_members,
            }
            for index, choice in sorted(self._choices.items())
        ]


class _TextPieces(list[str]):
    """Pieces of a text, joined only at the end to avoid copying a long answer for each token."""


class _IndexedItems(list[object]):
    """List of items with a lookup by `index`, because a search for each event would take quadratic time."""

    def __init__(self) -> None:
        super().__init__()
        self.by_index: dict[int | str, dict[str, object]] = {}


def _to_plain_json(value: object) -> object:
    if isinstance(value, _TextPieces):
        return "".join(value)
    if isinstance(value, list):
        return [_to_plain_json(item) for item in value]
    return {key: _to_plain_json(inner) for key, inner in value.items()} if isinstance(value, dict) else value


# Members whose string arrives whole in one event. Any other string in an event is a piece of a longer text.
_UNSPLIT_MEMBERS: Final = frozenset({"role", "id", "type", "finish_reason", "index"})


def _merge_delta(target: dict[str, object], delta: dict[str, object]) -> None:
    for key, piece in delta.items():
        known = target.get(key)
        if piece is None:
            continue
        if isinstance(piece, str) and key not in _UNSPLIT_MEMBERS:
            text = known if isinstance(known, _TextPieces) else _TextPieces()
            text.append(piece)
            target[key] = text
        elif isinstance(piece, dict):
            members = known if isinstance(known, dict) else {}
            _merge_delta(members, piece)
            target[key] = members
        elif isinstance(piece, list):
            items = known if isinstance(known, _IndexedItems) else _IndexedItems()
            _merge_items(items, piece)
            target[key] = items
        elif not (key in _UNSPLIT_MEMBERS and known and not piece):
            target[key] = piece


def _merge_items(items: _IndexedItems, pieces: list[object]) -> None:
    """Merge items that have an index (tool calls), and append others (log probabilities)."""
    for piece in pieces:
        index = piece.get("index") if isinstance(piece, dict) else None
        if not isinstance(piece, dict) or not isinstance(index, int | str):
            items.append(piece)
            continue
        if index not in items.by_index:
            items.by_index[index] = {}
            items.append(items.by_index[index])
        _merge_delta(items.by_index[index], piece)


def _stream_error(event: dict[str, object]) -> WorkFailed | TryAgain:
    """Return the exception for an error that the server reported inside the stream, after its status 200."""
    error = event.get("error")
    code = error.get("code") if isinstance(error, dict) else event.get("code")
    if isinstance(code, str) and _HTTP_STATUS_PATTERN.fullmatch(code):
        code = int(code)
    named = error_code(event)
    if isinstance(code, int) and 400 <= code <= 599:
        return error_for_status(code, {}, named)
    if named in ("invalid_prompt", "invalid_request_error", "content_filter", "BadRequestError"):
        return error_for_status(400, {}, named)
    return TryAgain(f"the stream ended with an error {named}".rstrip())
