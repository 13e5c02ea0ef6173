"""A provider that takes every job: polls, claims, opens, reverses the text, settles."""

import base64
from typing import Any, Final

import anyio
import attrs

from common.box import SecretKey, open_sealed
from common.container import open_with_data_key, open_with_secret
from common.envelope import Envelope, ResultBody
from common.scalars import base64_of
from common.sealed_result import seal_result
from tests.integration.coordinatord.scene.party import Party

CHAIN: Final = 31337
MODEL: Final = 1
RATE_IN, RATE_OUT = 1_000_000, 2_000_000


@attrs.frozen
class WorkingProvider:
    party: Party
    box_secret: bytes
    gateway: str

    async def open_shop(self, provider_id: int) -> None:
        await self.party.sign_in("provider")
        if not (await self.party.http.get("/evm/asks", params={"model": MODEL})).json()["asks"]:
            await self._publish(provider_id)
        await self.poll()  # live from now on

    async def _publish(self, provider_id: int) -> None:
        asks = self.party.asks(provider_id, (MODEL, 3600, RATE_IN, RATE_OUT), (MODEL, 86_400, RATE_IN, RATE_OUT))
        assert (await self.party.publish(asks)).status_code == 200

    async def poll(self) -> list[dict[str, Any]]:
        query = {"state": "Open", "model": MODEL, "free": 8}
        answer = await self.party.http.get("/evm/jobs", params=query, headers=self.party.authorization)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["jobs"])

    async def work(self) -> None:
        """Work until cancelled."""
        while True:
            for row in await self.poll():
                await self._settle(row)
            await anyio.sleep(0.05)

    async def work_ahead(self) -> None:
        """Claim and settle one job before its post has a block."""
        query = {"state": "Open", "model": MODEL, "free": 8, "pending": 1, "wait": 20}
        answer = await self.party.http.get("/evm/jobs", params=query, headers=self.party.authorization)
        (row,) = answer.json()["pending"]
        headers = self.party.authorization | {"prefer": "respond-async"}
        claimed = await self.party.http.post("/evm/ops", json=self.party.claim(row["job_id"]), headers=headers)
        assert claimed.status_code == 202, claimed.text
        await self._run(row)

    async def _settle(self, row: dict[str, Any]) -> None:
        claimed = await self.party.run(self.party.claim(row["job_id"]))
        assert claimed.status_code == 201, claimed.text
        await self._run(row)

    async def _run(self, row: dict[str, Any]) -> None:
        job = row["job_id"]
        container = (await self.party.http.get(f"{self.gateway}/ipfs/{row['task_cid']}")).content
        raw = bytes.fromhex(job[2:])
        envelope = Envelope.parse(await self._opened(row, container))
        output = str(envelope.input["input"])[::-1]
        body = ResultBody(raw, {"text": output, "for": envelope.custom_id}, {"output_tokens": len(output)})
        sealed = seal_result(envelope.result_key, CHAIN, self.party.registry, raw, body.encode())
        settled = await self.party.run(self.party.settle(job, len(output), result=base64_of(sealed)))
        assert settled.status_code == 201, settled.text

    async def _opened(self, row: dict[str, Any], container: bytes) -> bytes:
        if row["designated"] != "0":
            owner = bytes.fromhex(row["owner"][2:])
            return open_with_secret(SecretKey(self.box_secret), CHAIN, self.party.registry, owner, container)
        response = SecretKey.generate()
        asked = self.party.release(row["job_id"], container, response.public)
        released = await self.party.http.post("/release", json=asked)
        assert released.status_code == 200, released.text
        dek = open_sealed(response, base64.b64decode(released.json()["dek_sealed"]))
        assert dek is not None
        return open_with_data_key(dek, container)
