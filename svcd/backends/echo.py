"""Backend for development markets that needs no model server. The same input always gives the same answer.

text          the input itself; a stream sends the last text of the input word by word
embeddings    one vector per text, in the format of OpenAI's embeddings route
image         PNG files, in the format of OpenAI's images route
"""

import hashlib
import math
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from common.canonical_json import canonical
from common.pricing.model_input import read_count
from common.pricing.units import text_units
from common.refusal import Refused
from common.scalars import base64_of
from svcd.backends.backend import OnDelta
from svcd.backends.settings import EchoSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

DEFAULT_EMBEDDING_DIMENSIONS: Final = 64
MAX_EMBEDDING_DIMENSIONS: Final = 4096
MAX_IMAGES: Final = 16
CELLS_PER_SIDE: Final = 8
CELL_SIDE_PIXELS: Final = 8


@attrs.frozen(slots=True)
class EchoBackend:
    settings: EchoSettings

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput:
        if trio.current_time() + self.settings.delay_seconds >= work.deadline:
            raise WorkFailed("deadline_wait", "the delay would end past the deadline")
        words = _input_words(work) if on_delta is not None and work.modality == "text" else []
        for word in words:
            await trio.sleep(self.settings.delay_seconds / len(words))
            if on_delta is not None:
                on_delta({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": word}}]})
        if not words:
            await trio.sleep(self.settings.delay_seconds)
        try:
            return _build_output(work)
        except Refused as refused:
            raise WorkFailed("backend_error", refused.message) from None

    async def is_up(self) -> bool:
        return True

    async def explain_unknown_model(self, model: str) -> str | None:
        return None


def _build_output(work: ModelWork) -> WorkOutput:
    match work.modality:
        case "text":
            units = min(text_units(len(canonical(work.input))), work.units_out)
            return WorkOutput(work.input, units, {"units": units})
        case "embeddings":
            return WorkOutput(
                _embeddings_output(work), 0, {"prompt_tokens": work.units_in, "total_tokens": work.units_in}
            )
        case "image":
            return WorkOutput(_images_output(work), work.units_out, {"units": work.units_out})
        case "video":
            raise WorkFailed("media_input_refused", "the echo backend makes no videos")


def _input_words(work: ModelWork) -> list[str]:
    """Return the words of the input's text, or of the input's last message."""
    messages = work.input.get("messages", work.input.get("input", work.input.get("prompt")))
    last = messages[-1] if isinstance(messages, list) and messages else messages
    text = last.get("content") if isinstance(last, dict) else last
    return re.findall(r"\S+\s*", text) if isinstance(text, str) else []


def _embeddings_output(work: ModelWork) -> dict[str, object]:
    given = work.input.get("input")
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refused("input must be a text or a list of texts", "input")
    size = _read_count(work, "dimensions", DEFAULT_EMBEDDING_DIMENSIONS, MAX_EMBEDDING_DIMENSIONS)
    vectors = [make_embedding(str(text), size) for text in texts]
    as_base64 = work.input.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _pack_vector(vector) if as_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": work.model}


def make_embedding(text: str, dimensions: int = DEFAULT_EMBEDDING_DIMENSIONS) -> list[float]:
    """Return a vector of length 1, derived from a hash of the text."""
    raw = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    numbers = [value + 0.5 for value in struct.unpack(f"<{dimensions}h", raw)]  # never all zero
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def _pack_vector(vector: list[float]) -> str:
    return base64_of(struct.pack(f"<{len(vector)}f", *vector))


def _images_output(work: ModelWork) -> dict[str, object]:
    prompt = work.input.get("prompt", work.input.get("input"))
    if not isinstance(prompt, str):
        raise Refused("prompt must be a text", "prompt")
    number = _read_count(work, "num_images", 1, MAX_IMAGES)
    seed = work.input.get("seed", 0)
    return {"data": [{"b64_json": base64_of(make_picture(f"{seed} {index} {prompt}"))} for index in range(number)]}


def make_picture(prompt: str) -> bytes:
    """Return a small PNG: a symmetric pattern in two colours, both derived from a hash of the prompt."""
    raw = hashlib.shake_256(prompt.encode("utf-8", "surrogatepass")).digest(6 + CELLS_PER_SIDE)
    palette, pattern = raw[:6], raw[6:]
    side = CELLS_PER_SIDE * CELL_SIDE_PIXELS
    # Colour type 3: one byte per pixel, an index into the palette. Each row begins with filter type 0 (no filter).
    header = struct.pack(">IIBBBBB", side, side, 8, 3, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(_pattern_row(bits)) for bits in pattern for _ in range(CELL_SIDE_PIXELS))
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(name, content) for name, content in chunks)


def _pattern_row(bits: int) -> Iterator[int]:
    for cell in range(CELLS_PER_SIDE):
        mirrored = min(cell, CELLS_PER_SIDE - 1 - cell)
        for _ in range(CELL_SIDE_PIXELS):
            yield bits >> mirrored & 1


def _png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _read_count(work: ModelWork, name: str, default: int, maximum: int) -> int:
    value = work.input.get(name)
    count = default if value is None else read_count(value, name, minimum=1)
    if count > maximum:
        raise Refused(f"{name} must be at most {maximum}", name)
    return count
