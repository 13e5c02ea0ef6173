"""/openapi.json as third-party tools read it: they generate requests to the coordinator, and check its responses."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import run_process

from tests.integration.coordinatord.peers.conftest import ROOT, Served
from tests.integration.coordinatord.scene.escrows import MOCK
from tests.integration.coordinatord.scene.party import Body, Party
from tests.support.fakes.submissions import jsonl

pytestmark = pytest.mark.timeout(900)

HERE = ROOT / "tests" / "peers" / "openapi"
BIN = ROOT / ".venv-peers" / "bin"


@pytest.fixture
def served_settings() -> dict[str, object]:
    """An escrow and webhooks. Streams and held polls never end, so their limits are 0."""
    return {**MOCK, "event_listeners_per_caller": 0, "WEBHOOKS_KEY": "0b" * 32, "WEBHOOKS_PRIVATE": "allow"}


async def _prepared(served: Served, owner: Party, seller: Party) -> dict[str, Any]:
    """Return validly signed requests by operation, in the order in which they succeed, and ids of existing objects."""
    provider = served.world.market.provider_ids[served.world.wallets.with_role("provider")[0].address]
    await owner.sign_in()

    def each(bodies: list[Body], *status: int, ids: list[str] | None = None) -> list[dict[str, Any]]:
        named = [{"id": one} for one in ids] if ids is not None else [{}] * len(bodies)
        return [{"body": body, "status": status, **name} for body, name in zip(bodies, named, strict=True)]

    posted = [(await owner.post())["job_id"] for _ in range(2)]
    idle = [(await owner.post())["job_id"] for _ in range(2)]
    unpaid = [owner.order() for _ in range(2)]
    lines = jsonl([owner.pay(owner.order(), 1)])
    files = [(await owner.upload("batch", lines)).json()["id"] for _ in range(2)]
    batch = {"endpoint": "/v1/responses", "completion_window": "24h"}
    claims = [seller.claim(job) for job in posted]
    settles, fails = [seller.settle(job, result="AAAA") for job in posted[:1]], [seller.fail(job) for job in posted[1:]]
    listed = {
        "jobs": posted + idle,
        "files": files,
        "models": ["demo/text-small"],
        "providers": [str(provider)],
        "numbers": ["1"],
    }
    return {
        "ids": {path: listed[kind] for path, kind in _KNOWN.items()},
        "POST /v1/jobs": each(unpaid, 402) + each([await owner.paid() for _ in range(3)], 201, 202),
        "POST /v1/jobs/check": each(unpaid, 200),
        "POST /v1/jobs/{id}/cancel": each([owner.cancel(job) for job in idle], 200, ids=idle),
        "POST /evm/ops": each([*claims, *settles, *fails], 201, 202),
        "PUT /evm/asks": each([seller.asks(provider, (1, 3600, 10, 20))], 200),
        "POST /auth/session": each([await owner.session_body(role="client") for _ in range(2)], 200),
        "POST /v1/batches": each([{**batch, "input_file_id": name} for name in files], 200),
    }


# Values for the path parameters.
_KNOWN = {
    "/v1/models/{name}": "models",
    "/evm/models/{id}/prices": "numbers",
    "/evm/providers/{id}": "providers",
    "/v1/files/{id}": "files",
    "/v1/files/{id}/content": "files",
    "/v1/jobs/{id}": "jobs",
    "/v1/jobs/{id}/why": "jobs",
    "/v1/jobs/{id}/events": "jobs",
    "/v1/jobs/{id}/progress": "jobs",
    "/evm/jobs/{job_id}": "jobs",
    "/evm/jobs/{job_id}/transactions": "jobs",
}


async def test_schemathesis_requests_get_described_responses(
    served: Served,
    owner: Party,
    seller: Party,
    held: Callable[[str], None],
    tmp_path: Path,
) -> None:
    prepared, sent, report = (tmp_path / f"{name}.json" for name in ("prepared", "sent", "report"))
    requests = await _prepared(served, owner, seller)
    prepared.write_text(json.dumps(requests))
    command = (
        *(str(BIN / "schemathesis"), "--config-file", str(HERE / "schemathesis.toml"), "run"),
        *(f"{served.coordinator.base_url}/openapi.json", "--url", served.coordinator.base_url),
        *("--report", "json", "--report-json-path", str(report)),
    )
    environment = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(HERE),
        "PREPARED": str(prepared),
        "PREPARED_SENT": str(sent),
        "SESSION": owner.token,
        "SELLER": seller.token,
    }
    ran = await run_process(command, env=environment, cwd=tmp_path, check=False, stderr=subprocess.STDOUT)
    log = ROOT / "build" / "peers" / "schemathesis-run.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(ran.stdout)
    told = ran.stdout.decode()
    assert ran.returncode == 0, f"all of it: {log}\n{told[-8000:]}"
    due = requests.keys() - {"ids"}
    came: dict[str, int] = {name: many for name, many in json.loads(sent.read_text()).items() if many}
    assert came.keys() == due, "operations without one prepared request: their time was too short"
    operations, cases = re.search(r"Tested: (\d+)", told), re.search(r"(\d+) generated", told)
    assert operations is not None
    assert cases is not None
    document = (await served.http.get("/openapi.json")).json()
    assert int(operations[1]) == sum(map(len, document["paths"].values()))
    held(f"{operations[1]} operations, {cases[1]} requests, {sum(came.values())} of them with true signatures")


async def test_document_is_valid_for_openapi_spec_validator(
    served: Served, held: Callable[[str], None], tmp_path: Path
) -> None:
    document = (await served.http.get("/openapi.json")).json()
    path = tmp_path / "openapi.json"

    async def told() -> str:
        path.write_text(json.dumps(document))
        command = (str(BIN / "openapi-spec-validator"), "--schema", "3.1", str(path))
        ran = await run_process(command, check=False, stderr=subprocess.STDOUT)
        return ran.stdout.decode().strip() if ran.returncode else ""

    assert await told() == ""
    held("the document as it is served, by the schema of 3.1")
    del document["paths"]["/healthz"]["get"]["responses"]["200"]["description"]
    assert "description" in await told()  # it would report an error
