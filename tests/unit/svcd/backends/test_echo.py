"""The echo backend: its answers are predictable, and have the form that each route requires."""

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from common.pricing.model_input import Modality
from common.scalars import read_base64
from svcd.backends.build import open_backend
from svcd.backends.settings import EchoSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import WorkOutput
from svcd.payload.picture_size import PictureSize, measure_picture
from tests.support.fakes.provider_work import work_on


async def answer(modality: Modality, **model_input: object) -> WorkOutput:
    async with open_backend(EchoSettings(delay_seconds=0)) as echo:
        return await echo.run(work_on(model_input, modality=modality))


async def test_text_comes_back_as_it_is() -> None:
    output = await answer("text", input="x" * 8)
    assert (output.output, output.completion_tok) == ({"input": "x" * 8}, 5)


async def test_text_streams_word_by_word_over_the_delay() -> None:
    passed: list[tuple[float, object]] = []
    async with open_backend(EchoSettings(delay_seconds=3)) as echo:
        work = work_on({"messages": [{"role": "user", "content": "one  two three"}]}, deadline=100)
        output = await echo.run(work, lambda chunk: passed.append((trio.current_time(), chunk["choices"])))
    assert output.output == work.input
    assert passed == [
        (number + 1, [{"index": 0, "delta": {"content": word}}])
        for number, word in enumerate(("one  ", "two ", "three"))
    ]


async def vectors(**model_input: object) -> list[Any]:
    output = await answer("embeddings", **model_input)
    assert output.completion_tok == 0
    assert isinstance(output.output, dict)
    rows = output.output["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row["embedding"] for row in rows]


async def test_embeddings_are_normalised_and_deterministic() -> None:
    cat, dog, again = await vectors(input=["cat", "dog", "cat"])
    assert cat == again != dog
    assert (len(cat), len(dog)) == (64, 64)
    assert math.hypot(*cat) == pytest.approx(1)
    assert await vectors(input="cat") == [cat]
    assert [len(vector) for vector in await vectors(input="cat", dimensions=7)] == [7]


async def test_embeddings_come_as_base64_where_asked() -> None:
    (cat,) = await vectors(input="cat")
    (packed,) = await vectors(input="cat", encoding_format="base64")
    assert struct.unpack("<64f", read_base64(packed, 256, "embedding")) == pytest.approx(cat)


async def pictures(**model_input: object) -> list[bytes]:
    output = await answer("image", **model_input)
    assert output.completion_tok == 100
    assert isinstance(output.output, dict)
    return [read_base64(row["b64_json"], 10_000, "image") for row in output.output["data"]]


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(png):
        length, name = struct.unpack_from(">I4s", png, at)
        content = png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(name + content),)
        yield name, content
        at += 12 + length


async def test_picture_is_a_whole_png() -> None:
    (png,) = await pictures(prompt="a cat")
    assert measure_picture(png) == PictureSize(64, 64)
    found = dict(chunks(png))
    assert list(found) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    pixels = zlib.decompress(found[b"IDAT"])
    assert len(pixels) == 64 * (1 + 64)
    assert set(pixels) == {0, 1}


async def test_pictures_follow_prompt_seed_and_number() -> None:
    first, second = await pictures(prompt="a cat", num_images=2)
    assert first != second
    assert await pictures(prompt="a cat") == [first]
    assert await pictures(prompt="a dog") != [first]
    assert await pictures(prompt="a cat", seed=1) != [first]


@pytest.mark.parametrize(
    ("modality", "model_input", "reason"),
    [
        ("embeddings", {"prompt": "cat"}, "backend_error"),
        ("embeddings", {"input": []}, "backend_error"),
        ("embeddings", {"input": [1, 2]}, "backend_error"),
        ("embeddings", {"input": "cat", "dimensions": 10**9}, "backend_error"),
        ("image", {"num_images": 1}, "backend_error"),
        ("image", {"prompt": "cat", "num_images": 10**6}, "backend_error"),
        ("video", {"prompt": "cat"}, "media_input_refused"),
    ],
)
async def test_unsupported_input_is_refused(modality: Modality, model_input: dict[str, object], reason: str) -> None:
    with pytest.raises(WorkFailed) as failed:
        await answer(modality, **model_input)
    assert failed.value.reason == reason


async def test_a_delay_that_does_not_fit_is_not_begun() -> None:
    async with open_backend(EchoSettings(delay_seconds=60)) as echo:
        began = trio.current_time()
        with pytest.raises(WorkFailed) as failed:
            await echo.run(work_on(deadline=began + 60))
        assert (failed.value.reason, trio.current_time()) == ("deadline_wait", began)
        await echo.run(work_on(deadline=began + 61))
        assert trio.current_time() == began + 60
