"""Server-sent events of `stream: true`, as OpenAI's server would send them, made from a complete answer.

A job's result arrives in one piece, so its text is split into deltas here. Until the result arrives, comments report
the progress and keep clients and proxies from timing out. Clients do not show comments.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from svc.serve.answers import answer_of, completion_id, response_id, response_shell
from svc.serve.media_answers import Bought
from svc.serve.problems import Problem
from svc.serve.requests import AnswerRequest

Json = dict[str, Any]

# About a dozen tokens.
_DELTA_CHARACTERS: Final = 48
DONE: Final = b"data: [DONE]\n\n"


def comment(text: str) -> bytes:
    """Return a line that clients skip."""
    return f": {' '.join(text.split())}\n\n".encode()


def _data(value: Json) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def split_deltas(text: str) -> Iterator[str]:
    """Split a text into deltas, after a space if there is one.

    >>> list(split_deltas("a sealed answer, of which more than one delta is made, as it were"))
    ['a sealed answer, of which more than one delta ', 'is made, as it were']
    """
    at = 0
    while at < len(text):
        end = at + _DELTA_CHARACTERS
        blank = text.rfind(" ", at, end) + 1 if end < len(text) else len(text)
        end = blank if blank > at else end
        yield text[at:end]
        at = end


class ChatEvents:
    """Chunks of a chat completion. Call `open_stream` before the result arrives, then `answer` or `end_with_error`."""

    def __init__(self, requested: AnswerRequest, job_id: str, created: int) -> None:
        self._wanted = requested
        self._head: Json = {
            "id": completion_id(job_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": requested.name,
        }
        self._opened: set[int] = set()

    def open_stream(self) -> Iterator[bytes]:
        yield self._opening_chunk(0)

    def answer(self, bought: Bought) -> Iterator[bytes]:
        answer = answer_of(self._wanted, bought)
        self._head["id"] = answer["id"] if not self._opened else self._head["id"]
        for choice in answer["choices"]:
            index = choice["index"]
            if index not in self._opened:
                yield self._opening_chunk(index)
            yield from self._deltas(index, choice)
            yield self._chunk(index, {}, choice["finish_reason"], svc=answer["svc"])
        if self._wanted.form.with_usage:
            yield _data(self._head | {"choices": [], "usage": answer["usage"], "svc": answer["svc"]})
        yield DONE

    def end_with_error(self, problem: Problem) -> Iterator[bytes]:
        yield _data(problem.body())
        yield DONE

    def _opening_chunk(self, index: int) -> bytes:
        self._opened.add(index)
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _deltas(self, index: int, choice: Json) -> Iterator[bytes]:
        message = choice["message"]
        for name in ("reasoning_content", "content", "refusal"):
            text = message.get(name)
            if isinstance(text, str):
                logprobs = choice.get("logprobs") if name == "content" else None
                for delta_text in split_deltas(text):
                    yield self._chunk(index, {name: delta_text}, logprobs=logprobs)
                    logprobs = None  # all of them with the first delta, because the server's own deltas are unknown
        for at, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            head = {"name": function["name"], "arguments": ""}
            yield self._chunk(index, {"tool_calls": [{"index": at, **call, "function": head}]})
            for delta_text in split_deltas(function["arguments"]):
                yield self._chunk(index, {"tool_calls": [{"index": at, "function": {"arguments": delta_text}}]})

    def _chunk(
        self, index: int, delta: Json, finish: str | None = None, *, logprobs: Any = None, svc: Json | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._head | {"choices": [choice]}
        if self._wanted.form.with_usage:
            chunk["usage"] = None
        return _data(chunk if svc is None else chunk | {"svc": svc})


class ResponseEvents:
    """Numbered events of a response.

    Call `open_stream` before the result arrives, then `answer` or `end_with_error`.
    """

    def __init__(self, requested: AnswerRequest, job_id: str, created: int) -> None:
        self._wanted = requested
        self._job_id = job_id
        self._created = created
        self._number = 0

    def open_stream(self) -> Iterator[bytes]:
        shell = response_shell(self._wanted, self._job_id, self._created)
        yield self._event("response.created", response=shell)
        yield self._event("response.in_progress", response=shell)

    def answer(self, bought: Bought) -> Iterator[bytes]:
        answer = answer_of(self._wanted, bought)
        answer |= {"id": response_id(self._job_id), "created_at": self._created}  # as in the first events
        for at, item in enumerate(answer["output"]):
            yield from self._item(at, item)
        end_status = answer["status"] if answer["status"] in {"incomplete", "failed"} else "completed"
        yield self._event(f"response.{end_status}", response=answer)

    def end_with_error(self, problem: Problem) -> Iterator[bytes]:
        shell = response_shell(self._wanted, self._job_id, self._created)
        error = {"code": problem.code or problem.type, "message": problem.message}
        yield self._event("response.failed", response=shell | {"status": "failed", "error": error})

    def _item(self, at: int, item: Json) -> Iterator[bytes]:
        empty_members: dict[str, Json] = {"message": {"content": []}, "function_call": {"arguments": ""}}
        empty = empty_members.get(item["type"], {})
        added = item | empty | ({"status": "in_progress"} if empty else {})
        yield self._event("response.output_item.added", output_index=at, item=added)
        position = {"item_id": item["id"], "output_index": at}
        if item["type"] == "message":
            for number, part in enumerate(item["content"]):
                yield from self._part({**position, "content_index": number}, part)
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            for delta_text in split_deltas(arguments):
                yield self._event("response.function_call_arguments.delta", **position, delta=delta_text)
            name = item.get("name")
            yield self._event("response.function_call_arguments.done", **position, name=name, arguments=arguments)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _part(self, position: Json, part: Json) -> Iterator[bytes]:
        event_type = {"output_text": ("text", "output_text"), "refusal": ("refusal", "refusal")}.get(
            str(part.get("type"))
        )
        if event_type is None:
            return
        name, event = event_type
        text = str(part.get(name, ""))
        yield self._event("response.content_part.added", **position, part=part | {name: ""})
        extra: Json = {"logprobs": []} if name == "text" else {}
        for delta_text in split_deltas(text):
            yield self._event(f"response.{event}.delta", **position, delta=delta_text, **extra)
        yield self._event(f"response.{event}.done", **position, **{name: text}, **extra)
        yield self._event("response.content_part.done", **position, part=part)

    def _event(self, event_type: str, **members: Any) -> bytes:
        value = {"type": event_type, "sequence_number": self._number, **members}
        self._number += 1
        return f"event: {event_type}\n".encode() + _data(value)


def events_of(requested: AnswerRequest, job_id: str, created: int) -> ChatEvents | ResponseEvents:
    return (ChatEvents if requested.route == "/v1/chat/completions" else ResponseEvents)(requested, job_id, created)
