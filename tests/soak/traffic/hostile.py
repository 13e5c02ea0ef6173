"""Clients that try forbidden or invalid requests. Each attempt has exactly one right response."""

import secrets
from contextlib import suppress
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from common.domains import Domains
from common.messages.sessions import SvcSession
from common.scalars import hex_of
from common.secp256k1 import Wallet
from tests.soak.answering import counted, plain_http
from tests.soak.ground import Ground
from tests.soak.timeline import Timeline

_GARBAGE: Final = (
    b"",
    b"{",
    b'{"a":1,"a":2}',
    b"[" * 100_000,
    b'{"rate_in":1e400}',
    b'{"model_id":"\xd9\xa1"}',
    b"\x00" * 64,
)


# Above the limits of one address, so that a missing limit is noticed.
_SIGN_INS: Final = 36
_NONCES: Final = 20
_SESSION_S: Final = 2.0  # remaining lifetime of a shortened session
_SHORTEN: Final = "update sessions set expires_at = clock_timestamp() + $2 * interval '1 second' where address = $1"


@attrs.frozen
class Hostile:
    ground: Ground
    timeline: Timeline

    async def one_nonce_twice(self, _n: int) -> str:
        """Use one nonce at every coordinator at once. Only one session may open (I8)."""
        wallet = Wallet(secrets.token_bytes(32))
        async with plain_http() as http:
            nonce = await http.get(f"{self.ground.base_urls[0]}/auth/nonce", params={"address": hex_of(wallet.address)})
            if nonce.status_code != 200:
                return counted(nonce, self.timeline, {200})
            body = self._proof(wallet, nonce.json()["nonce"])
            answers: list[int] = []

            async def present(url: str) -> None:
                # A coordinator that is down must not cancel the other tasks of the group.
                with suppress(httpx.TransportError):
                    answers.append((await http.post(f"{url}/auth/session", json=body)).status_code)

            async with anyio.create_task_group() as presenting:
                for url in self.ground.base_urls * 2:
                    presenting.start_soon(present, url)
        if answers.count(200) > 1:
            self.timeline.complain(f"I8: one nonce made {answers.count(200)} sessions")
        return "one session" if 200 in answers else "no session"

    async def many_sessions(self, n: int) -> str:
        """Sign in repeatedly with one wallet, and request nonces without using them. Both are limited (I8)."""
        wallet = Wallet(secrets.token_bytes(32))
        async with plain_http(self.ground.base_urls[n % len(self.ground.base_urls)]) as http:
            opened = 0
            for _ in range(_SIGN_INS):
                opened += await self._signed_in(http, wallet) is not None
            for _ in range(_NONCES):
                await http.get("/auth/nonce", params={"address": hex_of(wallet.address)})
        return "all opened" if opened == _SIGN_INS else "some opened"

    async def outlived_session(self, _n: int) -> str:
        """Use an expired session, with a lifetime shortened for the test. Every coordinator must reject it (I8)."""
        wallet = Wallet(secrets.token_bytes(32))
        async with plain_http(self.ground.base_urls[0]) as http:
            token = await self._signed_in(http, wallet)
        if token is None:
            return "no session"
        try:
            connection = await asyncpg.connect(self.ground.database_url, timeout=5)
            try:
                await connection.execute(_SHORTEN, wallet.address, _SESSION_S)
            finally:
                await connection.close(timeout=5)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return "the database is away"
        await self._with(token)  # every coordinator has seen the valid token, and may cache it
        await anyio.sleep(_SESSION_S + 0.5)
        answers = await self._with(token)
        if 200 in answers:
            self.timeline.complain(f"I8: a session that had expired was honoured: {answers}")
        return "ended in time" if answers.count(401) else "no answer"

    async def _with(self, token: str) -> list[int]:
        """Return every coordinator's response to a request with this token."""
        answers = []
        for url in self.ground.base_urls:
            with suppress(httpx.TransportError):
                async with plain_http(url) as http:
                    answer = await http.get("/v1/batches", headers={"authorization": f"Bearer {token}"})
                answers.append(answer.status_code)
        return answers

    async def _signed_in(self, http: httpx.AsyncClient, wallet: Wallet) -> str | None:
        nonce = await http.get("/auth/nonce", params={"address": hex_of(wallet.address)})
        if nonce.status_code != 200:
            return None
        answer = await http.post("/auth/session", json=self._proof(wallet, nonce.json()["nonce"]))
        return answer.json()["token"] if answer.status_code == 200 else None

    def _proof(self, wallet: Wallet, nonce: str) -> dict[str, str]:
        message = SvcSession(wallet.address, nonce)
        signature = wallet.sign(Domains.of(self.ground.book).session.digest(message))
        return {"address": hex_of(wallet.address), "nonce": nonce, "signature": hex_of(signature)}

    async def garbage(self, n: int) -> str:
        """Post invalid submissions."""
        url = self.ground.base_urls[n % len(self.ground.base_urls)]
        async with plain_http() as http:
            answer = await http.post(
                f"{url}/v1/jobs", content=_GARBAGE[n % len(_GARBAGE)], headers={"content-type": "application/json"}
            )
        return counted(answer, self.timeline, {400})

    async def not_theirs(self, n: int) -> str:
        """Request owners' routes with an unissued token."""
        url = self.ground.base_urls[n % len(self.ground.base_urls)]
        headers = {"authorization": f"Bearer svc_sess_{secrets.token_hex(32)}"}
        path = ("/v1/batches", "/v1/files/file-000000000000000000000000", "/evm/jobs?free=1&state=Open&model=1")[n % 3]
        async with plain_http() as http:
            answer = await http.get(f"{url}{path}", headers=headers)
        return counted(answer, self.timeline, {401})
