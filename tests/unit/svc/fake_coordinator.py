"""A scripted coordinator that records its requests."""

import json
from collections.abc import AsyncIterable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx

from common.box import SecretKey
from common.scalars import hex_of
from common.secp256k1 import Wallet
from svc.client import Client
from svc.sync_client import SyncClient
from tests.support.fakes.streamed import StreamedTransport

WALLET = Wallet(bytes(31) + b"\x01")
BOX_SECRET = SecretKey(bytes(range(32)))
JOB_REGISTRY = "0x" + "11" * 20
FEE_BPS, GAS_FEE = 250, 2_000

DEPLOYMENT = {
    "chain_id": 31337,
    "contracts": {
        "job_registry": JOB_REGISTRY,
        "provider_registry": "0x" + "12" * 20,
        "ask_registry": "0x" + "13" * 20,
        "paytoken": "0x" + "14" * 20,
    },
    "decimals": 6,
    "token_domain": {"name": "Dev Dollar", "version": "1"},
    "gas_price": "1",
    "head_block": "5",
    "block_time_ms": 500,
    "fee_bps": FEE_BPS,
}
MODEL = {
    "id": "demo/text",
    "object": "model",
    "owned_by": "demo",
    "svc": {"model_id": "1", "enabled": True},
    "as_of_block": "5",
}
CANDIDATE = {"provider_id": "7", "box_key": hex_of(BOX_SECRET.public.raw), "rate_in": "1000000", "rate_out": "2000000"}


@attrs.frozen
class Answer:
    status: int
    body: object = None
    headers: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Asked:
    route: str
    body: Any
    headers: httpx.Headers
    query: dict[str, str]
    at: float


class Dropped:
    """The connection ends without an answer."""


Told = Answer | Dropped | Callable[[Asked], Answer]


@attrs.define
class FakeCoordinator:
    """`script`: answers per route, in turn. The last answer repeats."""

    script: dict[str, list[Told]] = attrs.field(factory=dict)
    asked: list[Asked] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.script = {
            "GET /evm/chain": [Answer(200, DEPLOYMENT)],
            "GET /v1/models/demo/text": [Answer(200, MODEL)],
            "GET /evm/providers/7": [Answer(200, provider())],
            "GET /evm/asks": [Answer(200, {"asks": [], "as_of_block": "5"})],
            **self.script,
        }

    def tell(self, route: str, *answers: Told) -> None:
        self.script[route] = list(answers)

    def routes(self) -> list[str]:
        return [asked.route for asked in self.asked]

    def to(self, route: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.route == route]

    def client(self, **options: Any) -> Client:
        return Client(http=self._http(), environment={}, **{"wallet_key": WALLET, **options})

    def sync_client(self) -> SyncClient:
        return SyncClient(http=self._http(), environment={}, wallet_key=WALLET)

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=StreamedTransport(self._answer), base_url="https://coordinator")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        host = "" if request.url.host == "coordinator" else f"{request.url.scheme}://{request.url.host}"
        route = f"{request.method} {host}{request.url.path}"
        content = request.read()
        body = json.loads(content) if request.headers.get("content-type") == "application/json" else content
        asked = Asked(route, body, request.headers, dict(request.url.params), anyio.current_time())
        self.asked.append(asked)
        answers = self.script.get(route)
        if not answers:
            return httpx.Response(404, json=error("not_found"))
        told = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(told, Dropped):
            raise httpx.ReadError("connection lost", request=request)
        answer = told if isinstance(told, Answer) else told(asked)
        if isinstance(answer.body, bytes | AsyncIterable):
            return httpx.Response(answer.status, content=answer.body, headers=answer.headers)
        return httpx.Response(answer.status, json=answer.body, headers=answer.headers)


def error(type_: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": "as told", "type": type_, "param": param, "code": code}}


def failing(status: int, type_: str, code: str | None = None, *, retryable: bool = False) -> Answer:
    headers = {"x-svc-retryable": "true" if retryable else "false", "x-request-id": "r1"}
    return Answer(status, error(type_, code), headers)


def provider(**changed: object) -> dict[str, Any]:
    return {
        "provider_id": "7",
        "operator": "0x" + "77" * 20,
        "box_key": hex_of(BOX_SECRET.public.raw),
        "evidence": None,
        "listed": True,
        "reputation": "500",
        "allow_all_models": True,
        "allowed_models": [],
        "capacity": "5",
        "active_jobs": "0",
        "as_of_block": "5",
        **changed,
    }


def quoting(gas_fee: int = GAS_FEE, status: int = 402, **changed: object) -> Callable[[Asked], Answer]:
    """Answer with the quote of the requested order. `changed` fields make the quote false."""

    def quoted(asked: Asked) -> Answer:
        order = asked.body
        worth = sum(int(order[f"rate_{way}"]) * int(order[f"units_{way}"]) for way in ("in", "out"))
        cap = max(1, -(-worth // 10**6))
        amount = cap + cap * FEE_BPS // 10_000 + gas_fee
        authorization = {
            "domain": {
                "name": "Dev Dollar",
                "version": "1",
                "chainId": 31337,
                "verifyingContract": DEPLOYMENT["contracts"]["paytoken"],  # type: ignore[index] # a nested object
            },
            "to": JOB_REGISTRY,
            "value": str(amount),
            "valid_after": "0",
            "valid_before": str(int(order["expires_at"]) + 1),
            "nonce": order["job_id"],
        }
        quote = {
            "cap": str(cap),
            "fee_bps": FEE_BPS,
            "fee": str(cap * FEE_BPS // 10_000),
            "gas_fee": str(gas_fee),
            "amount": str(amount),
        }
        lies = {name: value for name, value in changed.items() if name in quote}
        authorization |= {name: value for name, value in changed.items() if name not in quote}
        body = {"quote": quote | lies | {"authorization": authorization}, "candidates": [CANDIDATE], "accepts": []}
        return Answer(status, body, {"x-svc-retryable": "false"})

    return quoted


def posted(asked: Asked) -> Answer:
    return Answer(201, {"job_id": asked.body["job_id"], "task_cid": "bafytask", "tx_hash": "0x" + "cc" * 32})


def job(job_id: str, status: str = "queued", **changed: Any) -> dict[str, Any]:
    details = {
        **{"job_id": job_id, "owner": hex_of(WALLET.address), "model_id": "1", "sla_secs": "3600"},
        **{"rate_in": "1000000", "rate_out": "2000000", "units_in": "4", "units_out": "10", "designated": "7"},
        **{"provider_id": "0", "expires_at": "9999999999", "task_cid": "bafytask", "completion_tok": "0"},
        **{"state": 0, "ended_because": 0},
    }
    top = {"id": job_id, "object": "job", "model": "demo/text", "status": status, "in_progress_at": None}
    body = {**top, "result_cid": None, "as_of_block": "5"} | {k: v for k, v in changed.items() if k not in details}
    details |= {k: v for k, v in changed.items() if k in details}
    return body | {"svc": details | (_cost(details) if status == "completed" else {})}


def _cost(details: dict[str, Any]) -> dict[str, Any]:
    units = {"in": details["units_in"], "out": details["completion_tok"]}
    worth = sum(int(details[f"rate_{way}"]) * int(number) for way, number in units.items())
    provider = max(1, -(-worth // 10**6))
    fee = provider * FEE_BPS // 10_000
    parts = {"provider": str(provider), "fee": str(fee), "gas_fee": str(GAS_FEE)}
    return {"cost": str(provider + fee + GAS_FEE), "cost_parts": parts}


def step(op: str, rests_on: str, **more: object) -> dict[str, object]:
    return {"op": op, "rests_on": rests_on, **more}


def settle(cid: str = "bafyr", rests_on: str = "stored", **changed: object) -> dict[str, object]:
    return step("settle", rests_on, **{"provider_id": "7", "result_cid": cid, "completion_tok": "3", **changed})


def progress(job_id: str, status: str, *steps: dict[str, object], provisional: bool = True) -> dict[str, Any]:
    told = [step("post", "stored"), *steps] if status != "refused" else list(steps)
    return {"job_id": job_id, "status": status, "provisional": provisional, "steps": told, "block": "5"}


def stored(asked: Asked) -> Answer:
    """Answer a request that prefers not to wait for the block."""
    if asked.headers.get("prefer") != "respond-async":
        return posted(asked)
    job_id = asked.body["job_id"]
    headers = {"preference-applied": "respond-async", "location": f"/v1/jobs/{job_id}/progress"}
    return Answer(202, progress(job_id, "queued"), headers)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition without advancing the clock."""
    while not holds():
        await anyio.lowlevel.checkpoint()
