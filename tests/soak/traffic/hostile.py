"""Those who try what is not theirs or makes no sense: each attempt has one answer that is right."""

import secrets
from typing import Any, Final

import anyio
import httpx

from common.domains import Domains
from common.messages.sessions import SvcSession
from common.scalars import hex_of
from common.secp256k1 import Wallet
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
_TROUBLE: Final = {429, 503}  # a market under faults may be too busy to refuse properly


async def one_nonce_twice(ground: Ground, timeline: Timeline) -> str:
    """One nonce, shown to every coordinator at once: one session (I8)."""
    wallet = Wallet(secrets.token_bytes(32))
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        nonce = await http.get(f"{ground.base_urls[0]}/auth/nonce", params={"address": hex_of(wallet.address)})
        if nonce.status_code != 200:
            return _met(nonce, timeline, {200})
        value = nonce.json()["nonce"]
        message = SvcSession(wallet.address, value)
        body = {
            "address": hex_of(wallet.address),
            "nonce": value,
            "signature": hex_of(wallet.sign(Domains.of(ground.book).session.digest(message))),
        }
        answers: list[int] = []

        async def present(url: str) -> None:
            answers.append((await http.post(f"{url}/auth/session", json=body)).status_code)

        async with anyio.create_task_group() as presenting:
            for url in ground.base_urls * 2:
                presenting.start_soon(present, url)
    if answers.count(200) > 1:
        timeline.complain(f"I8: one nonce made {answers.count(200)} sessions")
    return "one session" if 200 in answers else "no session"


async def garbage(ground: Ground, timeline: Timeline, n: int) -> str:
    """Bodies that are no submission."""
    url = ground.base_urls[n % len(ground.base_urls)]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        answer = await http.post(
            f"{url}/v1/jobs", content=_GARBAGE[n % len(_GARBAGE)], headers={"content-type": "application/json"}
        )
    return _met(answer, timeline, {400})


async def not_theirs(ground: Ground, timeline: Timeline, n: int) -> str:
    """Routes of owners, with a token that nobody was given."""
    url = ground.base_urls[n % len(ground.base_urls)]
    headers = {"authorization": f"Bearer svc_sess_{secrets.token_hex(32)}"}
    path = ("/v1/batches", "/v1/files/file-000000000000000000000000", "/evm/jobs?free=1&state=Open&model=1")[n % 3]
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        answer = await http.get(f"{url}{path}", headers=headers)
    return _met(answer, timeline, {401})


def _met(answer: httpx.Response, timeline: Timeline, right: set[int]) -> str:
    if answer.status_code not in right | _TROUBLE:
        timeline.complain(f"{answer.request.method} {answer.request.url.path} was answered {answer.status_code}")
    told: dict[str, Any] = answer.json() if answer.status_code != 200 else {}
    return (
        f"{answer.status_code} {told.get('error', {}).get('code') or told.get('error', {}).get('type') or ''}".strip()
    )
