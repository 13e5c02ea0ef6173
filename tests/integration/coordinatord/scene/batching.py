"""An owner of batches that uploads, creates, waits and reads results."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import attrs
import httpx

from coordinatord.api.files.files import FileStore
from coordinatord.chain.contracts.job_registry import JobRegistry
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.fakes.submissions import Submitter, jsonl

CREATE = {"endpoint": "/v1/responses", "completion_window": "24h"}


@attrs.frozen
class UploadedContainer:
    content: bytes
    cid: str


@attrs.frozen
class Batching:
    stage: Stage
    owner: Party
    submitter: Submitter

    @classmethod
    async def of(cls, stage: Stage, owner: Party) -> "Batching":
        """`owner` must be signed in."""
        book = stage.ground.config.addresses
        terms = await JobRegistry(stage.ground.rpc, book.job_registry).read_fees()
        submitter = Submitter(
            owner.wallet, stage.ground.domains, book.chain_id, book.job_registry, terms, owner.box_key
        )
        return cls(stage, owner, submitter)

    @property
    def files(self) -> FileStore:
        ground = self.stage.ground
        return FileStore(ground.database, ground.pins, ground.config.file_retention_seconds)

    async def upload(self, *lines: Body | bytes) -> str:
        content = _pieces(jsonl(lines))
        return (await self.files.upload(self.owner.wallet.address, "batch", "batch.jsonl", content)).id

    async def upload_container(self) -> UploadedContainer:
        content = self.owner.container()
        row = await self.files.upload(self.owner.wallet.address, "input", "container", _pieces(content))
        return UploadedContainer(content, row.cid)

    async def post(self, body: Body, **headers: str) -> httpx.Response:
        return await self.owner.http.post("/v1/batches", json=body, headers={**self.owner.authorization, **headers})

    async def create(self, *lines: Body | bytes, **more: object) -> Body:
        answer = await self.post({**CREATE, "input_file_id": await self.upload(*lines), **more})
        assert answer.status_code == 200, answer.text
        created: Body = answer.json()
        return created

    async def get(self, path: str) -> httpx.Response:
        return await self.owner.http.get(f"/v1/batches{path}", headers=self.owner.authorization)

    async def cancel(self, batch_id: str) -> httpx.Response:
        return await self.owner.http.post(f"/v1/batches/{batch_id}/cancel", headers=self.owner.authorization)

    async def until(self, batch_id: str, **wanted: Any) -> Body:
        """Wait until the batch has these members. `counts` means its request counts."""
        batch: Body = {}
        with anyio.fail_after(60):
            while any(batch.get(name) != value for name, value in wanted.items()):
                await anyio.sleep(0.02)
                batch = (await self.get(f"/{batch_id}")).json()
                batch["counts"] = tuple(batch["request_counts"][name] for name in ("completed", "failed", "total"))
        return batch

    async def lines(self, file_id: str | None) -> list[Body]:
        if file_id is None:
            return []
        row = await self.files.find(file_id, self.owner.wallet.address)
        assert row is not None
        assert row.purpose == "batch_output"
        async with self.files.open(row) as pieces:
            return [json.loads(line) for line in b"".join([piece async for piece in pieces]).splitlines()]


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content
