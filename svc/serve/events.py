"""Server-sent events of `stream: true`, as OpenAI's server would send them, made from a complete answer.

A job's result arrives in one piece, so its text is split here into deltas (the pieces of text that events carry). Until
the result arrives, comments report the progress and keep clients and proxies from timing out. Clients do not show
comments. In a tab, the deltas of the model's server are passed on as they arrive (`live_events`).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc.serve.answers import build_answer, completion_id, empty_response, message_id, response_id
from svc.serve.media_answers import BoughtAnswer
from svc.serve.problems import Problem
from svc.serve.requests import AnswerRequest

JsonObject = dict[str, Any]

# Maximum length of a delta. 48 characters are about a dozen tokens.
_DELTA_CHARACTERS: Final = 48
_TEXT_FIELDS: Final = ("reasoning_content", "content", "refusal")
_DONE_EVENT: Final = b"data: [DONE]\n\n"


def live_deltas(chunk: Mapping[str, Any]) -> Iterator[tuple[int, JsonObject, Any]]:
    """Yield the index, delta and log probabilities of each choice in a chunk.

    `chunk` is a chunk of a chat completion or a text event of a response.
    """
    if chunk.get("type") == "response.output_text.delta" and isinstance(chunk.get("delta"), str):
        index = chunk.get("output_index")
        if chunk.get("content_index") == 0 and isinstance(index, int):
            yield index, {"content": chunk["delta"]}, None
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(delta := choice.get("delta"), dict):
            index = choice.get("index", 0)
            if isinstance(index, int):
                yield index, delta, choice.get("logprobs")


def _unsent_text(text: str, sent: str) -> str:
    """Return the part of a text that was not streamed, or an empty text if the stream differed from the text."""
    return text.removeprefix(sent) if text.startswith(sent) else ""


def comment_line(text: str) -> bytes:
    """Return a comment of the event stream, which clients ignore."""
    return f": {' '.join(text.split())}\n\n".encode()


def _data_event(value: JsonObject) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def split_deltas(text: str) -> Iterator[str]:
    """Split a text into deltas, after a space if there is one.

    >>> list(split_deltas("A provider seals each answer to the key of the wallet that ordered it."))
    ['A provider seals each answer to the key of the ', 'wallet that ordered it.']
    """
    start = 0
    while start < len(text):
        end = start + _DELTA_CHARACTERS
        after_space = text.rfind(" ", start, end) + 1 if end < len(text) else len(text)
        end = after_space if after_space > start else end
        yield text[start:end]
        start = end


class ChatEvents:
    """Chunks of a chat completion.

    Call `opening_events` before the result arrives, then `answer_events` or `error_events`.
    """

    def __init__(self, requested: AnswerRequest, job_id: str, created_at: int) -> None:
        self._requested = requested
        self._chunk_fields: JsonObject = {
            "id": completion_id(job_id),
            "object": "chat.completion.chunk",
            "created": created_at,
            "model": requested.model_name,
        }
        self._opened_choices: set[int] = set()
        self._sent_text: dict[tuple[int, str], str] = {}  # texts that were streamed
        self._choices_with_calls: set[int] = set()  # choices whose tool calls were streamed

    def live_events(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events for a chunk of the model's server. `answer_events` yields the rest of the answer."""
        for index, delta, logprobs in live_deltas(chunk):
            if index not in self._opened_choices:
                yield self._opening_chunk(index)
            for name in _TEXT_FIELDS:
                if isinstance(text := delta.get(name), str) and text:
                    self._sent_text[index, name] = self._sent_text.get((index, name), "") + text
                    yield self._chunk_event(index, {name: text}, logprobs=logprobs if name == "content" else None)
            if isinstance(calls := delta.get("tool_calls"), list) and calls:
                self._choices_with_calls.add(index)
                yield self._chunk_event(index, {"tool_calls": calls})

    def opening_events(self) -> Iterator[bytes]:
        yield self._opening_chunk(0)

    def answer_events(self, bought: BoughtAnswer) -> Iterator[bytes]:
        answer = build_answer(self._requested, bought)
        self._chunk_fields["id"] = answer["id"] if not self._opened_choices else self._chunk_fields["id"]
        for choice in answer["choices"]:
            index = choice["index"]
            if index not in self._opened_choices:
                yield self._opening_chunk(index)
            yield from self._delta_events(index, choice)
            yield self._chunk_event(index, {}, choice["finish_reason"], svc=answer["svc"])
        if self._requested.form.include_usage:
            yield _data_event(self._chunk_fields | {"choices": [], "usage": answer["usage"], "svc": answer["svc"]})
        yield _DONE_EVENT

    def error_events(self, problem: Problem) -> Iterator[bytes]:
        yield _data_event(problem.body())
        yield _DONE_EVENT

    def _opening_chunk(self, index: int) -> bytes:
        self._opened_choices.add(index)
        return self._chunk_event(index, {"role": "assistant", "content": ""})

    def _delta_events(self, index: int, choice: JsonObject) -> Iterator[bytes]:
        message = choice["message"]
        for name in _TEXT_FIELDS:
            text = message.get(name)
            if isinstance(text, str):
                sent = self._sent_text.get((index, name), "")
                logprobs = choice.get("logprobs") if name == "content" and not sent else None
                for delta_text in split_deltas(_unsent_text(text, sent)):
                    yield self._chunk_event(index, {name: delta_text}, logprobs=logprobs)
                    logprobs = None  # all are in the first delta, because the model's own deltas are unknown
        calls = () if index in self._choices_with_calls else message.get("tool_calls") or ()
        for number, call in enumerate(calls):
            function = call["function"]
            head = {"name": function["name"], "arguments": ""}
            yield self._chunk_event(index, {"tool_calls": [{"index": number, **call, "function": head}]})
            for delta_text in split_deltas(function["arguments"]):
                yield self._chunk_event(
                    index, {"tool_calls": [{"index": number, "function": {"arguments": delta_text}}]}
                )

    def _chunk_event(
        self,
        index: int,
        delta: JsonObject,
        finish_reason: str | None = None,
        *,
        logprobs: Any = None,
        svc: JsonObject | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = self._chunk_fields | {"choices": [choice]}
        if self._requested.form.include_usage:
            chunk["usage"] = None
        return _data_event(chunk if svc is None else chunk | {"svc": svc})


class ResponseEvents:
    """Numbered events of a response.

    Call `opening_events` before the result arrives, then `answer_events` or `error_events`.
    """

    def __init__(self, requested: AnswerRequest, job_id: str, created_at: int) -> None:
        self._requested = requested
        self._job_id = job_id
        self._created_at = created_at
        self._number = 0
        self._sent_text = ""  # streamed text of the first item
        self._item_id: str | None = None  # id of the item that is being streamed
        self._can_stream = True

    def live_events(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events for a chunk of the model's server.

        Only the text of the answer's first item is streamed. `answer_events` yields the rest.
        """
        for index, delta, _ in live_deltas(chunk):
            self._can_stream = (
                self._can_stream and index == 0 and not (delta.keys() & {"reasoning_content", "tool_calls"})
            )
            text = delta.get("content")
            if not self._can_stream or not isinstance(text, str) or not text:
                continue
            if self._item_id is None:
                self._item_id = str(chunk.get("item_id") or message_id(self._job_id, 0))
                item = {"id": self._item_id, "type": "message", "role": "assistant", "status": "in_progress"}
                yield self._numbered_event("response.output_item.added", output_index=0, item=item | {"content": []})
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield self._numbered_event("response.content_part.added", **self._first_part_position, part=part)
            self._sent_text += text
            yield self._numbered_event(
                "response.output_text.delta", **self._first_part_position, delta=text, logprobs=[]
            )

    @property
    def _first_part_position(self) -> JsonObject:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def opening_events(self) -> Iterator[bytes]:
        empty = empty_response(self._requested, self._job_id, self._created_at)
        yield self._numbered_event("response.created", response=empty)
        yield self._numbered_event("response.in_progress", response=empty)

    def answer_events(self, bought: BoughtAnswer) -> Iterator[bytes]:
        answer = build_answer(self._requested, bought)
        answer |= {"id": response_id(self._job_id), "created_at": self._created_at}  # the same as in the opening events
        for index, item in enumerate(answer["output"]):
            yield from self._item_events(index, item)
        end_status = answer["status"] if answer["status"] in {"incomplete", "failed"} else "completed"
        yield self._numbered_event(f"response.{end_status}", response=answer)

    def error_events(self, problem: Problem) -> Iterator[bytes]:
        empty = empty_response(self._requested, self._job_id, self._created_at)
        error = {"code": problem.code or problem.type, "message": problem.message}
        yield self._numbered_event("response.failed", response=empty | {"status": "failed", "error": error})

    def _item_events(self, index: int, item: JsonObject) -> Iterator[bytes]:
        empty_members: dict[str, JsonObject] = {"message": {"content": []}, "function_call": {"arguments": ""}}
        empty = empty_members.get(item["type"], {})
        added = item | empty | ({"status": "in_progress"} if empty else {})
        streamed = index == 0 and self._item_id is not None
        if streamed:
            item["id"] = self._item_id
        else:
            yield self._numbered_event("response.output_item.added", output_index=index, item=added)
        position = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            for number, part in enumerate(item["content"]):
                sent = self._sent_text if streamed and number == 0 else None
                yield from self._part_events({**position, "content_index": number}, part, sent)
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            for delta_text in split_deltas(arguments):
                yield self._numbered_event("response.function_call_arguments.delta", **position, delta=delta_text)
            name = item.get("name")
            yield self._numbered_event(
                "response.function_call_arguments.done", **position, name=name, arguments=arguments
            )
        yield self._numbered_event("response.output_item.done", output_index=index, item=item)

    def _part_events(self, position: JsonObject, part: JsonObject, sent: str | None) -> Iterator[bytes]:
        event_type = {"output_text": ("text", "output_text"), "refusal": ("refusal", "refusal")}.get(
            str(part.get("type"))
        )
        if event_type is None:
            return
        name, event = event_type
        text = str(part.get(name, ""))
        if sent is None:
            yield self._numbered_event("response.content_part.added", **position, part=part | {name: ""})
        extra: JsonObject = {"logprobs": []} if name == "text" else {}
        for delta_text in split_deltas(_unsent_text(text, sent or "")):
            yield self._numbered_event(f"response.{event}.delta", **position, delta=delta_text, **extra)
        yield self._numbered_event(f"response.{event}.done", **position, **{name: text}, **extra)
        yield self._numbered_event("response.content_part.done", **position, part=part)

    def _numbered_event(self, event_type: str, **members: Any) -> bytes:
        value = {"type": event_type, "sequence_number": self._number, **members}
        self._number += 1
        return f"event: {event_type}\n".encode() + _data_event(value)


def build_events(requested: AnswerRequest, job_id: str, created_at: int) -> ChatEvents | ResponseEvents:
    return (ChatEvents if requested.route == "/v1/chat/completions" else ResponseEvents)(requested, job_id, created_at)
