"""Replay the examples of /openapi.json: bodies of the same shape, signed for the run, get responses of the examples'
shape."""

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import pytest

from common.api import worked_order
from common.api.progress import ProgressStep
from common.api.webhooks import EXAMPLE_WEBHOOK_ID
from common.box import PublicKey, SecretKey
from devnet.world import World
from tests.integration.coordinatord.escrow.test_handover import request as handover_request
from tests.integration.coordinatord.http.test_openapi import assert_described
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.escrows import MOCK, allow
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.fakes.submissions import jsonl
from tests.support.openapi import OPENAPI

# Values of any shape, defined by the operator or the market.
THEIR_OWN = {"params_schema", "entry", "metadata", "evidence", "gateway_url"}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# Members absent from an op that is not a settle, from a model without them, from a job not claimed or ended, from a
# provider without settled jobs or bundles, or from a poll without pending posts or traced jobs.
OMITTED = {
    "terms",
    "result_cid",
    "params_schema",
    "endpoint",
    "reclaimable_at",
    "reclaimable_block",
    "ended_at",
    "pending",
    "traces",
    "units_per_sec",
    "largest_bundle",
}


@pytest.fixture
def stage_settings() -> dict[str, object]:
    webhooks = {"WEBHOOKS_KEY": "5e" * 32, "WEBHOOKS_PRIVATE": "allow"}
    return {**MOCK, **webhooks, "GATEWAY_URL": "https://gateway.example"}


def shape(value: Any, at: str = "") -> Any:
    """Return a value's shape: its members, or the length of its hex, digits or text."""
    if value is None or at in THEIR_OWN:
        return None
    if isinstance(value, dict):
        return {name: shape(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, str):
        hexadecimal = re.fullmatch(r"(0x)?([0-9a-f]{40,})", value)
        if hexadecimal:
            return f"{hexadecimal[1] or ''}{len(hexadecimal[2])} digits"
        return "number" if value.isdigit() else "text"
    return type(value).__name__


def alike(shown: Any, got: Any) -> bool:
    """Compare shapes. Members may be null and lists empty."""
    if shown is None or got is None or shown == [] or got == []:
        return True
    if isinstance(shown, dict) and isinstance(got, dict) and "rests_on" in shown:  # a step: its other members differ
        return {"op", "rests_on"} <= got.keys() <= set(ProgressStep.__struct_fields__)
    if isinstance(shown, dict) and isinstance(got, dict):
        missing, more = shown.keys() - got.keys(), got.keys() - shown.keys()
        return missing <= OMITTED and not more and all(alike(shown[name], got[name]) for name in got)
    if isinstance(shown, list) and isinstance(got, list):
        return alike(shown[0], got[0])
    return bool(shown == got or {shown, got} == {"number", "int"})


@attrs.define
class Replay:
    """The document's examples, and the names of those already replayed."""

    document: Body
    http: httpx.AsyncClient
    authorization: dict[str, str]
    real: dict[str, str] = attrs.field(factory=dict)  # real values for those of the worked order
    shown: set[tuple[str, str, str]] = attrs.field(factory=set)

    def operation(self, name: str) -> tuple[str, str, Body]:
        return next(
            (path, method, one)
            for path, methods in self.document["paths"].items()
            for method, one in methods.items()
            if one["operationId"] == name
        )

    def url(self, name: str) -> str:
        """Return the operation's URL, with example values replaced by real ones."""
        path, _, operation = self.operation(name)
        values = {one["name"]: str(one["example"]) for one in operation["parameters"] if "example" in one}
        values = {each: self.real.get(value, value) for each, value in values.items()}
        for each in re.findall(r"\{(\w+)\}", path):
            path = path.replace(f"{{{each}}}", values.pop(each))
        return f"{path}?{'&'.join(f'{each}={value}' for each, value in values.items())}"

    async def ask(self, name: str, example: str = "example", body: Body | None = None, **more: Any) -> Any:
        """Send the request of an example. Check that the response is one of those shown."""
        _, method, operation = self.operation(name)
        if body is not None:
            content = operation["requestBody"]["content"]["application/json"]["examples"]
            committed = shape(content[example]["value"])
            assert alike(committed, shape(body)), (name, example, committed, shape(body))
            more["json"] = body
            self.shown.add((name, "asked", example))
        headers = self.authorization | more.pop("headers", {})
        answer = await self.http.request(method.upper(), self.url(name), headers=headers, **more)
        self.judge(name, answer)
        return answer

    def judge(self, name: str, answer: httpx.Response) -> None:
        _, _, operation = self.operation(name)
        assert_described(self.document, operation, answer)
        response = operation["responses"][str(answer.status_code)]
        examples = response["content"].get("application/json", {}).get("examples", {})
        if not examples:
            assert answer.headers["content-type"] in response["content"]
            return
        got = shape(answer.json())
        like = [each for each, one in examples.items() if alike(shape(one["value"]), got)]
        assert like, (name, answer.status_code, got, examples)
        self.shown.add((name, str(answer.status_code), like[0]))

    def to_show(self) -> Iterator[tuple[str, str, str]]:
        """Return every example of a request, and of a successful response."""
        for methods in self.document["paths"].values():
            for one in methods.values():
                asked = [("asked", one["requestBody"])] if "requestBody" in one else []
                for kind, told in (*asked, *one["responses"].items()):
                    examples = told.get("content", {}).get("application/json", {}).get("examples", {})
                    yield from ((one["operationId"], kind, example) for example in examples if example != "Error")


async def test_every_example_is_replayed(
    stage: Stage, world: World, client: Party, provider: Party, batching: Batching
) -> None:
    document: Body = (await stage.http.get("/openapi.json")).json()
    assert document == json.loads((OPENAPI).read_text("utf-8"))
    me = (await stage.http.get("/evm/providers")).json()["providers"]
    provider_id = next(each["provider_id"] for each in me if each["operator"] == provider.address)
    of_provider = Replay(document, stage.http, provider.authorization, {worked_order.OWNER: provider.address})
    of_client = Replay(
        document, stage.http, client.authorization, {worked_order.OWNER: client.address}, of_provider.shown
    )
    of_client.real["2"] = provider_id

    await _registries(of_provider, provider, provider_id)
    settled = await _a_job(of_client, of_provider, client, provider)
    of_client.real[worked_order.JOB_ID] = settled
    for name in ("getJob", "getBookJob", "getOwnerSummary", "getProvider", "listProviders", "listAsks", "listFloors"):
        await of_client.ask(name)
    for name in ("countJobs", "countSlots", "search", "listBlockTimes", "listJobTransactions", "listPrices"):
        await of_client.ask(name)
    for name in ("getHealth", "getReadiness", "getChain", "listModels", "listModelsOfChain", "getModel", "getNonce"):
        await of_client.ask(name)
    of_client.real["demo/text-small"] = "demo/none"
    await of_client.ask("getModel")
    await of_client.ask("openSession", body=await provider.session_body(role="provider"))
    await _batches(of_client, batching, provider)
    await _webhooks(of_client)
    await _escrow(of_client, of_provider, client, provider)
    await allow(world)
    await of_client.ask("handOverKeys", body=handover_request(stage))
    await of_client.ask("listAllowlist")
    stage.stopping.is_set = True
    await of_client.ask("getReadiness")
    assert set(of_client.to_show()) - of_client.shown == set()


async def _registries(replay: Replay, provider: Party, provider_id: str) -> None:
    await replay.ask("runOp", "set_identity", provider.set_identity(provider.box_key, b""))
    await replay.ask("runOp", "request_capacity", provider.request_capacity(8))
    await replay.ask("publishAsks", body=provider.asks(int(provider_id), (1, 3600, 1, 1)))
    poll = await replay.http.get("/evm/jobs?state=Open&model=1&free=8", headers=replay.authorization)
    replay.judge("listJobs", poll)


async def _a_job(replay: Replay, of_provider: Replay, client: Party, provider: Party) -> str:
    """Create three jobs: one settles, one fails, one is cancelled."""
    await replay.ask("postJob", "probe", {"model_id": 1, "sla_secs": 3600, "units_in": 11, "units_out": 64})
    body = await client.paid()
    extra = ("auth_sig", "amount", "container")
    await replay.ask("postJob", "quote", {name: value for name, value in body.items() if name not in extra})
    await replay.ask("checkJob", "order", {name: value for name, value in body.items() if name not in extra})
    outdated = await replay.ask("postJob", "submission", client.pay(body, 1))
    assert outdated.status_code == 409
    job: str = (await replay.ask("postJob", "submission", body)).json()["job_id"]
    again = await replay.http.post("/v1/jobs", json=body)
    assert again.status_code == 409
    assert_described(replay.document, replay.operation("postJob")[2], again)
    await replay.ask("listJobs")
    replay.real[worked_order.JOB_ID] = job
    await replay.ask("whyJob")
    await replay.ask("postTabFrames", body={"messages": [{"job_id": job, "body": "AAAA"}]})
    asked = {"job_id": job, "address": provider.address}
    await of_provider.ask("simulateClaim", body=asked)
    await of_provider.ask("runOp", "claim", provider.claim(job))
    await of_provider.ask("simulateClaim", body=asked)
    await of_provider.ask("runOp", "claim", provider.claim(job))  # refused: it is claimed
    await of_provider.ask("runOp", "settle", provider.settle(job, result="AAAA"))
    await replay.ask("getJobProgress")
    failing = (await client.post())["job_id"]
    before_blocks = {"prefer": "respond-async"}
    await replay.ask("postJob", "submission", await client.paid(), headers=before_blocks)
    await of_provider.ask("runOp", "claim", provider.claim(failing))
    await of_provider.ask("runOp", "fail", provider.fail(failing))
    awaited = (await client.post())["job_id"]
    await of_provider.ask("runOp", "claim", provider.claim(awaited), headers=before_blocks)
    cancelled = (await client.post())["job_id"]
    replay.real[worked_order.JOB_ID] = cancelled
    await replay.ask("cancelJob", body=client.cancel(cancelled))
    return job


async def _batches(replay: Replay, batching: Batching, provider: Party) -> None:
    plan = {"completion_window": "1h", "models": [{"model_id": 1, "lines": 100, "units_in": 1100, "units_out": 6400}]}
    await replay.ask("createBatch", "plan", plan)
    line = batching.submitter.line()
    form = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", jsonl([line]))}}
    upload = (await replay.ask("uploadFile", **form)).json()["id"]
    replay.real[worked_order.FILE_ID] = upload
    await replay.ask("getFile")
    await replay.ask("getFileContent")
    body = {"input_file_id": upload, "endpoint": "/v1/responses", "completion_window": "1h", "metadata": {"run": "7"}}
    batch = (await replay.ask("createBatch", "batch", body)).json()["id"]
    replay.real[worked_order.BATCH_ID] = batch
    await replay.ask("cancelBatch")
    await replay.ask("getBatch")
    await replay.ask("listBatches")


async def _webhooks(replay: Replay) -> None:
    nobody = {"url": "http://127.0.0.1:9/", "events": ["job.settled", "batch.completed"], "secret": SECRET}
    replay.real[EXAMPLE_WEBHOOK_ID] = (await replay.ask("addWebhook", body=nobody)).json()["id"]
    for name in ("listWebhooks", "testWebhook", "removeWebhook"):
        await replay.ask(name)


async def _escrow(replay: Replay, of_provider: Replay, client: Party, provider: Party) -> None:
    key = (await replay.ask("getEscrowKey")).json()["escrow_public_key"]
    container = client.container(to=PublicKey(bytes.fromhex(key)))
    job = (await client.post(container=container))["job_id"]
    await of_provider.ask("runOp", "claim", provider.claim(job))
    await of_provider.ask("releaseKey", body=provider.release(job, container, SecretKey.generate().public))
