"""Find the text or the files in a model's answer.

    chat, completion     choices[].message.content (a text or a list of parts), choices[].text
    response             output[].content[].text of its messages; images that a tool made
    file                 {b64_json} or {b64, media_type}: alone, in a list, or in `data`
    anything else        the model's own JSON

An answer with other content, such as a tool call, is shown as JSON, so that nothing is left out. `--raw` always shows
the JSON.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.refusal import Refused
from common.scalars import read_base64

MAX_FILE_BYTES: Final = 1 << 30
_FILE_SIGNATURES: Final = (
    *((0, b"\x89PNG", "png"), (0, b"\xff\xd8\xff", "jpg"), (0, b"GIF8", "gif"), (8, b"WEBP", "webp")),
    *((8, b"WAVE", "wav"), (0, b"OggS", "ogg"), (0, b"ID3", "mp3"), (0, b"fLaC", "flac"), (0, b"%PDF", "pdf")),
    *((4, b"ftypavif", "avif"), (4, b"ftyp", "mp4"), (0, b"\x1aE\xdf\xa3", "webm")),
)
_TRUNCATION_REASONS: Final = frozenset({"length", "max_output_tokens"})


@attrs.frozen
class ReadableAnswer:
    """Text or files of an answer. Both are empty if the answer has other content.

    `remark` is set if the answer was cut off at its output limit.
    """

    text: str | None = None
    files: tuple[bytes, ...] = ()
    remark: str | None = None


def read_answer(output: Any) -> ReadableAnswer:
    """Return the text or files of an output.

    >>> read_answer({"choices": [{"message": {"role": "assistant", "content": "Because."}}]}).text
    'Because.'
    """
    if isinstance(output, str):
        return ReadableAnswer(output)
    files = _read_files(output)
    if files:
        return ReadableAnswer(files=files)
    if isinstance(output, Mapping):
        if isinstance(output.get("choices"), list):
            return _read_chat(output["choices"])
        if isinstance(output.get("output"), list):
            return _read_response(output)
    return ReadableAnswer()


def _read_chat(choices: list[Any]) -> ReadableAnswer:
    texts = [_choice_text(choice) for choice in choices]
    texts_found = [text for text in texts if text is not None]
    if not texts_found or len(texts_found) < len(texts):
        return ReadableAnswer()
    ends = [choice.get("finish_reason") for choice in choices]
    if len(texts_found) > 1:
        texts_found = [f"--- {number} of {len(texts_found)} ---\n{text}" for number, text in enumerate(texts_found, 1)]
    return ReadableAnswer(
        "\n".join(texts_found),
        remark=_truncation_remark(next((end for end in ends if end in _TRUNCATION_REASONS), None)),
    )


def _choice_text(choice: Any) -> str | None:
    """Return the text of a choice. Return None if the choice has no text, or has other content too."""
    if not isinstance(choice, Mapping):
        return None
    message = choice.get("message")
    if not isinstance(message, Mapping):
        text = choice.get("text")
        return text if isinstance(text, str) else None
    if any(message.get(name) for name in ("tool_calls", "function_call", "audio")):
        return None
    content = message.get("content") or message.get("refusal")
    return _parts_text(content) if isinstance(content, list) else content if isinstance(content, str) else None


def _read_response(output: Mapping[str, Any]) -> ReadableAnswer:
    texts: list[str] = []
    files: tuple[bytes, ...] = ()
    for item in output["output"]:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "message" and isinstance(item.get("content"), list):
            text = _parts_text(item["content"])
            if text is None:
                return ReadableAnswer()
            texts.append(text)
        elif kind == "image_generation_call" and (file := _read_file({"b64": item.get("result")})):
            files += (file,)
        elif kind != "reasoning":
            return ReadableAnswer()
    if not texts and not files:
        return ReadableAnswer()
    details = output.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    return ReadableAnswer("\n".join(texts) if texts else None, files, _truncation_remark(reason))


def _parts_text(parts: list[Any]) -> str | None:
    texts = []
    for part in parts:
        text = (part.get("text") or part.get("refusal")) if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts) if texts else None


def _truncation_remark(reason: object) -> str | None:
    if reason not in _TRUNCATION_REASONS:
        return None
    return f"the answer was cut off at its output limit ({reason}): raise the limit with -p max_output_tokens=N"


def _read_files(output: Any) -> tuple[bytes, ...]:
    """Return the files of an output. Return an empty tuple if any item is not a file."""
    if isinstance(output, Mapping) and isinstance(output.get("data"), list):
        output = output["data"]
    items = output if isinstance(output, list) else [output]
    files = [_read_file(item) for item in items]
    return tuple(file for file in files if file is not None) if None not in files else ()


def _read_file(item: Any) -> bytes | None:
    if not isinstance(item, Mapping):
        return None
    text = item.get("b64_json") or item.get("b64")
    try:
        return read_base64(text, MAX_FILE_BYTES, "file") if isinstance(text, str) and text else None
    except Refused:
        return None


def suffix_of(content: bytes) -> str:
    """Return the suffix for the type of a file, found from its first bytes, or `bin` for an unknown type.

    >>> suffix_of(bytes.fromhex("89504e470d0a1a0a"))
    'png'
    """
    return next((suffix for at, magic, suffix in _FILE_SIGNATURES if content[at : at + len(magic)] == magic), "bin")


def answer_as_text(output: Any, answer: ReadableAnswer) -> str:
    """Return the text of an answer, or the model's JSON if the answer has no text."""
    if answer.text is not None:
        return answer.text
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
