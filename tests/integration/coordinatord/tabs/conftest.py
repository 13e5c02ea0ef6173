"""A claimed job, and streams of the coordinator."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Seen, Stage
from tests.integration.coordinatord.scene.streams import Streams, streams_of


@pytest.fixture
async def streams(stage: Stage, seen: list[Seen]) -> AsyncIterator[Streams]:
    async with streams_of(stage, seen) as opened:
        yield opened


@pytest.fixture
async def job(client: Party, provider: Party) -> str:
    """A claimed job of the client. Both parties are signed in."""
    await client.sign_in()
    job: str = (await client.post(designated=1))["job_id"]
    assert (await provider.run(provider.claim(job))).status_code == 201
    return job
