"""Server-sent events of `stream: true`: those that OpenAI's server would send, made of an answer that is whole.

A job's result comes in one piece, so that its text is cut here into deltas; until it is there, comments say how far the
job is, which keeps clients and proxies from giving up. Comments are part of the format and shown to nobody.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from svc.serve.answers import answer_of, completion_id, response_id, response_shell
from svc.serve.media_answers import Bought
from svc.serve.problems import Problem
from svc.serve.requests import Wanted

Json = dict[str, Any]

_PIECE: Final = 48  # signs of a delta, about a dozen tokens
DONE: Final = b"data: [DONE]\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip."""
    return f": {' '.join(text.split())}\n\n".encode()


def _data(value: Json) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in deltas, cut behind blanks where there are some.

    >>> list(pieces("a sealed answer, of which more than one delta is made, as it were"))
    ['a sealed answer, of which more than one delta ', 'is made, as it were']
    """
    at = 0
    while at < len(text):
        end = at + _PIECE
        blank = text.rfind(" ", at, end) + 1 if end < len(text) else len(text)
        end = blank if blank > at else end
        yield text[at:end]
        at = end


class ChatEvents:
    """Chunks of a chat completion. `begin` before the result is there, then `answer` or `fail`."""

    def __init__(self, wanted: Wanted, job_id: str, created: int) -> None:
        self._wanted = wanted
        self._head: Json = {
            "id": completion_id(job_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": wanted.name,
        }
        self._opened: set[int] = set()

    def begin(self) -> Iterator[bytes]:
        yield self._opening(0)

    def answer(self, bought: Bought) -> Iterator[bytes]:
        made = answer_of(self._wanted, bought)
        self._head["id"] = made["id"] if not self._opened else self._head["id"]
        for choice in made["choices"]:
            index = choice["index"]
            if index not in self._opened:
                yield self._opening(index)
            yield from self._deltas(index, choice)
            yield self._chunk(index, {}, choice["finish_reason"], svc=made["svc"])
        if self._wanted.form.with_usage:
            yield _data(self._head | {"choices": [], "usage": made["usage"], "svc": made["svc"]})
        yield DONE

    def fail(self, problem: Problem) -> Iterator[bytes]:
        yield _data(problem.body())
        yield DONE

    def _opening(self, index: int) -> bytes:
        self._opened.add(index)
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _deltas(self, index: int, choice: Json) -> Iterator[bytes]:
        message = choice["message"]
        for name in ("reasoning_content", "content", "refusal"):
            text = message.get(name)
            if isinstance(text, str):
                logprobs = choice.get("logprobs") if name == "content" else None
                for piece in pieces(text):
                    yield self._chunk(index, {name: piece}, logprobs=logprobs)
                    logprobs = None  # all of them with the first piece: the server's own pieces are not known
        for at, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            head = {"name": function["name"], "arguments": ""}
            yield self._chunk(index, {"tool_calls": [{"index": at, **call, "function": head}]})
            for piece in pieces(function["arguments"]):
                yield self._chunk(index, {"tool_calls": [{"index": at, "function": {"arguments": piece}}]})

    def _chunk(
        self, index: int, delta: Json, finish: str | None = None, *, logprobs: Any = None, svc: Json | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._head | {"choices": [choice]}
        if self._wanted.form.with_usage:
            chunk["usage"] = None
        return _data(chunk if svc is None else chunk | {"svc": svc})


class ResponseEvents:
    """Events of a response, numbered. `begin` before the result is there, then `answer` or `fail`."""

    def __init__(self, wanted: Wanted, job_id: str, created: int) -> None:
        self._wanted = wanted
        self._job_id = job_id
        self._created = created
        self._number = 0

    def begin(self) -> Iterator[bytes]:
        shell = response_shell(self._wanted, self._job_id, self._created)
        yield self._event("response.created", response=shell)
        yield self._event("response.in_progress", response=shell)

    def answer(self, bought: Bought) -> Iterator[bytes]:
        made = answer_of(self._wanted, bought)
        made |= {"id": response_id(self._job_id), "created_at": self._created}  # as the first events said
        for at, item in enumerate(made["output"]):
            yield from self._item(at, item)
        ended = made["status"] if made["status"] in {"incomplete", "failed"} else "completed"
        yield self._event(f"response.{ended}", response=made)

    def fail(self, problem: Problem) -> Iterator[bytes]:
        shell = response_shell(self._wanted, self._job_id, self._created)
        error = {"code": problem.code or problem.type, "message": problem.message}
        yield self._event("response.failed", response=shell | {"status": "failed", "error": error})

    def _item(self, at: int, item: Json) -> Iterator[bytes]:
        empties: dict[str, Json] = {"message": {"content": []}, "function_call": {"arguments": ""}}
        empty = empties.get(item["type"], {})
        added = item | empty | ({"status": "in_progress"} if empty else {})
        yield self._event("response.output_item.added", output_index=at, item=added)
        place = {"item_id": item["id"], "output_index": at}
        if item["type"] == "message":
            for number, part in enumerate(item["content"]):
                yield from self._part({**place, "content_index": number}, part)
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            for piece in pieces(arguments):
                yield self._event("response.function_call_arguments.delta", **place, delta=piece)
            name = item.get("name")
            yield self._event("response.function_call_arguments.done", **place, name=name, arguments=arguments)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _part(self, place: Json, part: Json) -> Iterator[bytes]:
        kind = {"output_text": ("text", "output_text"), "refusal": ("refusal", "refusal")}.get(str(part.get("type")))
        if kind is None:
            return
        name, event = kind
        text = str(part.get(name, ""))
        yield self._event("response.content_part.added", **place, part=part | {name: ""})
        more: Json = {"logprobs": []} if name == "text" else {}
        for piece in pieces(text):
            yield self._event(f"response.{event}.delta", **place, delta=piece, **more)
        yield self._event(f"response.{event}.done", **place, **{name: text}, **more)
        yield self._event("response.content_part.done", **place, part=part)

    def _event(self, kind: str, **members: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return f"event: {kind}\n".encode() + _data(value)


def events_of(wanted: Wanted, job_id: str, created: int) -> ChatEvents | ResponseEvents:
    return (ChatEvents if wanted.route == "/v1/chat/completions" else ResponseEvents)(wanted, job_id, created)
