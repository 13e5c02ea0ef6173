"""Those who try what is not theirs or makes no sense: each attempt has one answer that is right."""

import secrets
from contextlib import suppress
from typing import Final

import anyio
import attrs
import httpx

from common.domains import Domains
from common.messages.sessions import SvcSession
from common.scalars import hex_of
from common.secp256k1 import Wallet
from tests.soak.ground import Ground
from tests.soak.plain_http import plain_http
from tests.soak.timeline import Timeline
from tests.soak.traffic.answers import counted

_GARBAGE: Final = (
    b"",
    b"{",
    b'{"a":1,"a":2}',
    b"[" * 100_000,
    b'{"rate_in":1e400}',
    b'{"model_id":"\xd9\xa1"}',
    b"\x00" * 64,
)


@attrs.frozen
class Hostile:
    ground: Ground
    timeline: Timeline

    async def one_nonce_twice(self, _n: int) -> str:
        """One nonce, shown to every coordinator at once: one session (I8)."""
        wallet = Wallet(secrets.token_bytes(32))
        async with plain_http() as http:
            nonce = await http.get(f"{self.ground.base_urls[0]}/auth/nonce", params={"address": hex_of(wallet.address)})
            if nonce.status_code != 200:
                return counted(nonce, self.timeline, {200})
            value = nonce.json()["nonce"]
            message = SvcSession(wallet.address, value)
            body = {
                "address": hex_of(wallet.address),
                "nonce": value,
                "signature": hex_of(wallet.sign(Domains.of(self.ground.book).session.digest(message))),
            }
            answers: list[int] = []

            async def present(url: str) -> None:
                # Inside a group of tasks: a coordinator that is down must not end the others.
                with suppress(httpx.TransportError):
                    answers.append((await http.post(f"{url}/auth/session", json=body)).status_code)

            async with anyio.create_task_group() as presenting:
                for url in self.ground.base_urls * 2:
                    presenting.start_soon(present, url)
        if answers.count(200) > 1:
            self.timeline.complain(f"I8: one nonce made {answers.count(200)} sessions")
        return "one session" if 200 in answers else "no session"

    async def garbage(self, n: int) -> str:
        """Bodies that are no submission."""
        url = self.ground.base_urls[n % len(self.ground.base_urls)]
        async with plain_http() as http:
            answer = await http.post(
                f"{url}/v1/jobs", content=_GARBAGE[n % len(_GARBAGE)], headers={"content-type": "application/json"}
            )
        return counted(answer, self.timeline, {400})

    async def not_theirs(self, n: int) -> str:
        """Routes of owners, with a token that nobody was given."""
        url = self.ground.base_urls[n % len(self.ground.base_urls)]
        headers = {"authorization": f"Bearer svc_sess_{secrets.token_hex(32)}"}
        path = ("/v1/batches", "/v1/files/file-000000000000000000000000", "/evm/jobs?free=1&state=Open&model=1")[n % 3]
        async with plain_http() as http:
            answer = await http.get(f"{url}{path}", headers=headers)
        return counted(answer, self.timeline, {401})
