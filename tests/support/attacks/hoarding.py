"""Attacks on the store: content and rows of a stranger who never pays for a job."""

import secrets

import attrs

from tests.integration.coordinatord.scene.party import Party
from tests.soak.answering import counted
from tests.support.attacks.target import Target


@attrs.define
class JunkFiles:
    """Files that are kept for long because a batch names them. All lines of the batch fail."""

    target: Target
    piece_bytes: int = 400_000
    name: str = "junk files"
    wallet_lasts: int = 40
    _party: Party | None = None

    async def strike(self, n: int) -> str:
        async with self.target.http() as http:
            if self._party is None or n % self.wallet_lasts == 0:
                self._party = await self.target.stranger(self.name, http)
            party, party.http = self._party, http
            if (refused := await self.target.sign_in(party)) is not None:
                return refused
            junk = secrets.token_hex(32).encode() + b"\n" * 3 + b"x" * self.piece_bytes
            uploaded = await party.upload("batch", junk, "batch.jsonl")
            if uploaded.status_code != 200:
                return f"upload {counted(uploaded, self.target.timeline, {200})}"
            named = {"endpoint": "/v1/responses", "completion_window": "24h", "input_file_id": uploaded.json()["id"]}
            answer = await http.post("/v1/batches", json=named, headers=party.authorization)
        return f"batch {counted(answer, self.target.timeline, {200, 400})}"
