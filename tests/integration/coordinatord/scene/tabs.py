"""Posts of frames to the mailbox of tabs."""

from collections.abc import Sequence
from typing import Final

import httpx

from common.scalars import base64_of
from tests.integration.coordinatord.scene.party import Party

POST: Final = "/v1/tabs/messages"


def path_of(job: str) -> str:
    return f"/v1/tabs/{job}/messages"


async def post(
    party: Party, job: str, frames: Sequence[bytes], http: httpx.AsyncClient | None = None
) -> list[dict[str, str]]:
    """Post frames. Return the refusals."""
    body = {"messages": [{"job_id": job, "body": base64_of(frame)} for frame in frames]}
    response = await (http or party.http).post(POST, json=body, headers=party.authorization)
    assert response.status_code == 200, response.text
    refused: list[dict[str, str]] = response.json()["refused"]
    return refused
