"""Assemble an answer from the events of a streaming server.

`answer` is the body that the server would have sent without streaming, or None while incomplete. `counted` is the
number of events with output, which is close to the number of tokens.
"""

import re
from typing import Final, Protocol

import attrs

from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import error_code, judge
from svcd.base.end_reasons import WorkFailed

_STATUS: Final = re.compile(r"[0-9]{3}", re.ASCII)


class Assembler(Protocol):
    @property
    def counted(self) -> int: ...

    def take(self, event: dict[str, object]) -> None:
        """Add an event. Raise `WorkFailed` or `TryAgain` for an error event."""
        ...

    def end(self) -> None:
        """Record the server's end marker."""
        ...

    def answer(self) -> dict[str, object] | None: ...


@attrs.define(slots=True)
class ResponsesAssembler:
    """Assembler of `/v1/responses`. The last event has the whole answer, so deltas are only counted."""

    counted: int = 0
    _answer: dict[str, object] | None = None

    def take(self, event: dict[str, object]) -> None:
        kind = str(event.get("type", ""))
        if kind.endswith(".delta"):
            self.counted += 1
        elif kind == "error":
            raise _stream_error(event)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            answer = event.get("response")
            if not isinstance(answer, dict):
                raise TryAgain(f"{kind} carries no response")
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
    rest: dict[str, object] = attrs.field(factory=dict)  # finish_reason, logprobs, and what else a server adds


@attrs.define(slots=True)
class ChatAssembler:
    """Assembler of `/v1/chat/completions`. Joins texts, and merges tool calls by index."""

    counted: int = 0
    _head: dict[str, object] = attrs.field(factory=dict)
    _choices: dict[int, _Choice] = attrs.field(factory=dict)
    _ended: bool = False

    def take(self, event: dict[str, object]) -> None:
        if event.get("error"):
            raise _stream_error(event)
        try:
            self._take_chunk(event)
        except RecursionError:
            raise TryAgain("a piece of the stream nests too deep") from None

    def _take_chunk(self, event: dict[str, object]) -> None:
        # Some servers send the usage in a last chunk without choices, and others with each chunk.
        self._head |= {key: value for key, value in event.items() if key != "choices" and value is not None}
        choices = event.get("choices")
        for chunk in choices if isinstance(choices, list) else ():
            if isinstance(chunk, dict):
                self._take_choice(chunk)

    def _take_choice(self, chunk: dict[str, object]) -> None:
        index = chunk.get("index", 0)
        choice = self._choices.setdefault(index if isinstance(index, int) else 0, _Choice())
        for key, value in chunk.items():
            if key == "delta" and isinstance(value, dict):
                self.counted += any(inner for name, inner in value.items() if name != "role")
                _join(choice.message, value)
            elif key not in ("delta", "index") and value is not None:
                _join(choice.rest, {key: value})

    def end(self) -> None:
        self._ended = True

    def answer(self) -> dict[str, object] | None:
        finished = all("finish_reason" in choice.rest for choice in self._choices.values())
        if not self._choices or not (self._ended or finished):
            return None
        try:
            choices = _written_out(self._whole())
        except RecursionError:
            raise TryAgain("the answer nests too deep") from None
        return self._head | {"object": "chat.completion", "choices": choices}

    def _whole(self) -> list[dict[str, object]]:
        return [
            {"index": index, "message": {"role": "assistant", "content": None, **choice.message}, **choice.rest}
            for index, choice in sorted(self._choices.items())
        ]


class _Text(list[str]):
    """Pieces of a text, joined only at the end to avoid copying a long answer for each token."""


class _Items(list[object]):
    """Items of a list, with a lookup by `index`. Searching the list would be quadratic."""

    def __init__(self) -> None:
        super().__init__()
        self.by_index: dict[int | str, dict[str, object]] = {}


def _written_out(value: object) -> object:
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, list):
        return [_written_out(item) for item in value]
    return {key: _written_out(inner) for key, inner in value.items()} if isinstance(value, dict) else value


# A delta repeats these in full; every other text is a piece of a longer one.
_WHOLE: Final = frozenset({"role", "id", "type", "finish_reason", "index"})


def _join(into: dict[str, object], delta: dict[str, object]) -> None:
    for key, piece in delta.items():
        known = into.get(key)
        if piece is None:
            continue
        if isinstance(piece, str) and key not in _WHOLE:
            text = known if isinstance(known, _Text) else _Text()
            text.append(piece)
            into[key] = text
        elif isinstance(piece, dict):
            members = known if isinstance(known, dict) else {}
            _join(members, piece)
            into[key] = members
        elif isinstance(piece, list):
            items = known if isinstance(known, _Items) else _Items()
            _join_items(items, piece)
            into[key] = items
        elif not (key in _WHOLE and known and not piece):
            into[key] = piece


def _join_items(items: _Items, pieces: list[object]) -> None:
    """Merge items that have an index (tool calls), and append others (log probabilities)."""
    for piece in pieces:
        index = piece.get("index") if isinstance(piece, dict) else None
        if not isinstance(piece, dict) or not isinstance(index, int | str):
            items.append(piece)
            continue
        if index not in items.by_index:
            items.by_index[index] = {}
            items.append(items.by_index[index])
        _join(items.by_index[index], piece)


def _stream_error(event: dict[str, object]) -> WorkFailed | TryAgain:
    """Return the exception for an error that the server reported inside the stream, after its status 200."""
    error = event.get("error")
    code = error.get("code") if isinstance(error, dict) else event.get("code")
    if isinstance(code, str) and _STATUS.fullmatch(code):
        code = int(code)
    named = error_code(event)
    if isinstance(code, int) and 400 <= code <= 599:
        return judge(code, {}, named)
    if named in ("invalid_prompt", "invalid_request_error", "content_filter", "BadRequestError"):
        return judge(400, {}, named)
    return TryAgain(f"the stream ended with an error {named}".rstrip())
