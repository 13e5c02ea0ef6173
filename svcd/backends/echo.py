"""Stand-in for a model server, for development markets: its answers can be checked, and need no server.

    text          the input itself
    embeddings    one vector per text, in the form of OpenAI's embeddings route
    image         PNG files, in the form of OpenAI's images route

The same input always gives the same answer.
"""

import hashlib
import math
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
from svcd.backends.settings import EchoSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

EMBEDDING_DIMENSIONS: Final = 64
MAX_EMBEDDING_DIMENSIONS: Final = 4096
MAX_IMAGES: Final = 16
PICTURE_CELLS: Final = 8
CELL_PIXELS: Final = 8


@attrs.frozen(slots=True)
class EchoBackend:
    settings: EchoSettings

    async def run(self, work: ModelWork) -> WorkOutput:
        if trio.current_time() + self.settings.delay_seconds >= work.deadline:
            raise WorkFailed("deadline_wait", "the delay would end past the deadline")
        await trio.sleep(self.settings.delay_seconds)
        try:
            return _answer(work)
        except Refused as refused:
            raise WorkFailed("backend_error", refused.message) from None

    async def is_up(self) -> bool:
        return True

    async def unknown_name(self, model: str) -> str | None:
        return None


def _answer(work: ModelWork) -> WorkOutput:
    match work.modality:
        case "text":
            units = min(text_units(len(canonical(work.input))), work.units_out)
            return WorkOutput(work.input, units, {"units": units})
        case "embeddings":
            return WorkOutput(_embeddings(work), 0, {"prompt_tokens": work.units_in, "total_tokens": work.units_in})
        case "image":
            return WorkOutput(_images(work), work.units_out, {"units": work.units_out})
        case "video":
            raise WorkFailed("media_input_refused", "the echo backend makes no videos")


def _embeddings(work: ModelWork) -> dict[str, object]:
    given = work.input.get("input")
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refused("input must be a text or a list of texts", "input")
    size = _count(work, "dimensions", EMBEDDING_DIMENSIONS, MAX_EMBEDDING_DIMENSIONS)
    vectors = [embedding(str(text), size) for text in texts]
    as_base64 = work.input.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if as_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": work.model}


def embedding(text: str, dimensions: int = EMBEDDING_DIMENSIONS) -> list[float]:
    """Return a vector of length 1, derived from a hash of the text."""
    raw = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    numbers = [value + 0.5 for value in struct.unpack(f"<{dimensions}h", raw)]  # never all zero
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def _packed(vector: list[float]) -> str:
    return base64_of(struct.pack(f"<{len(vector)}f", *vector))


def _images(work: ModelWork) -> dict[str, object]:
    prompt = work.input.get("prompt", work.input.get("input"))
    if not isinstance(prompt, str):
        raise Refused("prompt must be a text", "prompt")
    number = _count(work, "num_images", 1, MAX_IMAGES)
    seed = work.input.get("seed", 0)
    return {"data": [{"b64_json": base64_of(picture(f"{seed} {index} {prompt}"))} for index in range(number)]}


def picture(prompt: str) -> bytes:
    """Return a small PNG: a symmetric pattern in two colours, both derived from a hash of the prompt."""
    raw = hashlib.shake_256(prompt.encode("utf-8", "surrogatepass")).digest(6 + PICTURE_CELLS)
    palette, pattern = raw[:6], raw[6:]
    side = PICTURE_CELLS * CELL_PIXELS
    # Colour type 3: one byte per pixel, an index into the palette. Each row begins with filter type 0 (no filter).
    header = struct.pack(">IIBBBBB", side, side, 8, 3, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(_row(bits)) for bits in pattern for _ in range(CELL_PIXELS))
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _row(bits: int) -> Iterator[int]:
    for cell in range(PICTURE_CELLS):
        mirrored = min(cell, PICTURE_CELLS - 1 - cell)
        for _ in range(CELL_PIXELS):
            yield bits >> mirrored & 1


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _count(work: ModelWork, name: str, default: int, largest: int) -> int:
    value = work.input.get(name)
    count = default if value is None else read_count(value, name, minimum=1)
    if count > largest:
        raise Refused(f"{name} must be at most {largest}", name)
    return count
