"""Retry a transaction after its connection broke during a successful commit. The client cannot know that it
committed."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from coordinatord.storage.database.connections import Connection, Database
from tests.integration.coordinatord.scene.batching import CREATE, Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"WEBHOOKS_KEY": "5e" * 32}


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Run every later transaction twice."""
    once = Database.transact

    async def twice(self: Database, body: Callable[[Connection], Awaitable[T]]) -> T:
        await once(self, body)
        return await once(self, body)

    return lambda: monkeypatch.setattr(Database, "transact", twice)


async def test_session_opens(stage: Stage, client: Party, unheard: Callable[[], None]) -> None:
    unheard()
    await client.sign_in()
    assert await stage.fetchval("select count(*) from sessions") == 1
    assert await stage.fetchval("select count(*) from nonces") == 0


async def test_webhook_is_added_and_removed_once(stage: Stage, client: Party, unheard: Callable[[], None]) -> None:
    await client.sign_in()
    unheard()
    body = {"url": "https://shop.example/hook"}
    added = await stage.http.post("/v1/webhooks", json=body, headers=client.authorization)
    assert added.status_code == 200, added.text
    assert await stage.fetchval("select array_agg(id) from webhooks") == [added.json()["id"]]
    one = f"/v1/webhooks/{added.json()['id']}"
    answers = [await stage.http.delete(one, headers=client.authorization) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 404]


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "once"}])
async def test_batch_is_created_once(
    stage: Stage, batching: Batching, headers: dict[str, str], unheard: Callable[[], None]
) -> None:
    body = {**CREATE, "input_file_id": await batching.upload(*batching.submitter.lines(1))}
    unheard()
    created = await batching.post(body, **headers)
    assert created.status_code == 200, created.text
    assert await stage.fetchval("select array_agg(id) from batches") == [created.json()["id"]]


async def test_upload_and_job_are_stored_once(stage: Stage, client: Party, unheard: Callable[[], None]) -> None:
    await client.sign_in()
    unheard()
    uploaded = await client.upload("input", client.container())
    assert uploaded.status_code == 200, uploaded.text
    await client.post()
    assert await stage.fetchval("select count(*) from files") == 1
    assert await stage.fetchval("select count(*) from relays") == 1
