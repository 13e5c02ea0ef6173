"""Payloads too large for a body: the container is uploaded, and the result is written to a file."""

import json
from pathlib import Path

import anyio
import pytest

from svc.client import Client
from svc.core.sealing import MAX_INLINE_CONTAINER_BYTES
from svc.errors import InvalidRequest, NotFound
from svc.orders import UnlistedParameter
from tests.integration.svc.working_provider import WorkingProvider


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough, because size does not depend on it."""
    return "trio"


async def test_large_container_is_uploaded_and_its_result_saved(
    client: Client, provider: WorkingProvider, tmp_path: Path
) -> None:
    with pytest.warns(UnlistedParameter):
        prepared = await client.prepare(
            "demo/text-small", {"input": "large", "padding": "x" * MAX_INLINE_CONTAINER_BYTES}, window="async"
        )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work)
        await client.submit(prepared, max_amount=10**9)
        length = await client.save(await client.wait(prepared.id), tmp_path / "result.json")
        tasks.cancel_scope.cancel()
    body = await anyio.Path(tmp_path / "result.json").read_bytes()
    assert (json.loads(body)["output"]["text"], len(body)) == ("egral", length)


async def test_file_comes_back_as_it_was_stored(client: Client, tmp_path: Path) -> None:
    content = b'{"a": 1}\n\n{"b": 2}\n'
    await anyio.Path(tmp_path / "lines.jsonl").write_bytes(content)
    file = await client.files.upload(tmp_path / "lines.jsonl", "batch")
    assert (file.filename, file.bytes, file.svc.lines) == ("lines.jsonl", len(content), 2)
    assert await client.files.get(file.id) == file
    assert await client.files.content(file.id) == content
    assert await client.files.save(file.id, tmp_path / "copy") == len(content)
    with pytest.raises(NotFound):
        await client.files.get("file-unknown")
    with pytest.raises(InvalidRequest) as refused:
        await client.files.upload(b"no container", "input")
    assert refused.value.code == "bad_container"
