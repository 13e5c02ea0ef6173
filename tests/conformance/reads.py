"""Checks of a coordinator's public reads: health, the deployment, the catalogue, the book, providers, escrow.

No check uses a wallet, and no request changes anything.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

from common.api import states
from common.api.chain import DeploymentFields, HealthShape, Nonce, ReadinessShape
from common.api.error_bodies import ModelNotFound
from common.api.escrow import Key, PublishedEvidence
from common.api.jobs import ClientJob, JobAsOf, JobList, Summary
from common.api.limits import KIB
from common.api.market import (
    Allowlist,
    AskList,
    Candidates,
    FloorList,
    ModelAsOf,
    ModelList,
    ProviderFields,
)
from common.api.providers import ClaimRefused
from common.api.shapes import Digits, Shape
from common.refusal import Refused
from common.scalars import read_bare_hex
from tests.conformance.asking import Answer, Body, TriedCoordinator, not_like, not_refused
from tests.conformance.verdicts import misfit

_SPEC: Final = "the specification, "
_NOBODY: Final = "0x" + "5a" * 20
_NO_JOB: Final = "0x" + "5a" * 32
_BAD: Final = "invalid_request_error"
# A request that must be refused: area, description, path, status, type, code and the named field.
_Refusal = tuple[str, str, str, int, str, str | None, str | None]
_REFUSALS: Final[Sequence[_Refusal]] = (
    ("routes", "route that does not exist", "/v1/nothing", 404, "not_found", None, None),
    ("jobs", "job id that is none", "/v1/jobs/0x12", 400, _BAD, None, "id"),
    ("jobs", "job that nobody posted", f"/v1/jobs/{_NO_JOB}", 404, "not_found", None, None),
    ("book", "book row of a job id that is none", "/evm/jobs/0x12", 400, _BAD, None, "job_id"),
    ("book", "book row that nobody posted", f"/evm/jobs/{_NO_JOB}", 404, "not_found", None, None),
    ("book", "state that is none", "/evm/jobs?state=open", 400, _BAD, None, "state"),
    ("book", "order that is none", "/evm/jobs?order=random", 400, _BAD, None, "order"),
    ("book", "owner that is no address", "/evm/jobs?owner=0x12", 400, _BAD, None, "owner"),
    ("book", "least rate with a sign", "/evm/jobs?min_rate_in=%2B1", 400, _BAD, None, "min_rate_in"),
    ("book", "least rate with a leading zero", "/evm/jobs?min_rate_out=01", 400, _BAD, None, "min_rate_out"),
    ("book", "parameter twice", "/evm/jobs?state=Open&state=Open", 400, _BAD, None, "state"),
    ("book", "summary of no owner", "/evm/jobs/summary", 400, _BAD, None, "owner"),
    ("poll", "free without a session", "/evm/jobs?state=Open&model=1&free=1", 401, "authentication_error",
     "invalid_session", None),
    ("paging", "limit 0", "/evm/jobs?limit=0", 400, _BAD, None, "limit"),
    ("paging", "limit 1001", "/evm/asks?limit=1001", 400, _BAD, None, "limit"),
    ("paging", "limit in words", "/v1/models?limit=ten", 400, _BAD, None, "limit"),
    ("paging", "offset 1000001", "/evm/providers?offset=1000001", 400, _BAD, None, "offset"),
    ("providers", "provider id beyond 32 bits", "/evm/providers/4294967296", 400, _BAD, None, None),
    ("providers", "provider that nobody is", "/evm/providers/4294967295", 404, "not_found", None, None),
    ("sessions", "nonce for no address", "/auth/nonce", 400, _BAD, None, "address"),
    ("sessions", "nonce for an address that is none", "/auth/nonce?address=0x12", 400, _BAD, None, "address"),
    ("sessions", "file without a session", "/v1/files/file-0", 401, "authentication_error", "invalid_session", None),
    ("sessions", "batches without a session", "/v1/batches", 401, "authentication_error", "invalid_session", None),
)  # fmt: skip
_PAGED: Final = (
    ("/v1/models", "data", "catalogue"),
    ("/evm/jobs", "jobs", "book"),
    ("/evm/asks", "asks", "asks"),
    ("/evm/asks/floors", "floors", "asks"),
    ("/evm/providers", "providers", "providers"),
    ("/evm/allowlist", "entries", "providers"),
)


# Members of a provider that the specification promises. Later additions may be missing.
class _ProviderById(ProviderFields[Digits], frozen=True, kw_only=True):
    as_of_block: Digits


class _ProviderPage(Shape, frozen=True):
    providers: list[ProviderFields[Digits]]
    as_of_block: Digits


_LISTS: Final[dict[str, Any]] = {
    "/v1/models": ModelList,
    "/evm/jobs": JobList,
    "/evm/asks": AskList,
    "/evm/asks/floors": FloorList,
    "/evm/providers": _ProviderPage,
    "/evm/allowlist": Allowlist,
}


@attrs.define
class Reads:
    """The checks, and facts about the market for later checks."""

    coordinator: TriedCoordinator
    chain: Body = attrs.field(factory=dict)
    models: list[Body] = attrs.field(factory=list)
    providers: list[Body] = attrs.field(factory=list)
    asks: list[Body] = attrs.field(factory=list)
    escrow: Body | None = None

    async def run(self) -> None:
        await self._health()
        await self._deployment()
        for path, member, area in _PAGED:
            await self._listing(path, member, area)
        for area, tried, path, status, type_, code, param in _REFUSALS:
            wrong = not_refused(await self.coordinator.get(path), status, type_, code=code, **_param(param))
            expected = f"{status} {type_}" + (f" {code}" if code else "") + (f", param {param}" if param else "")
            self._judge(area, tried, expected, wrong, "protocol/guide.md#parties-and-calls")
        await self._models()
        await self._jobs()
        await self._providers()
        await self._not_modified()
        await self._escrow()
        await self._simulate()
        await self._probe()

    def _judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge(area, tried, expected, wrong, page)

    async def _health(self) -> None:
        answer = await self.coordinator.get("/healthz")
        self._judge("health", "GET /healthz", "200 {status: ok}", not_like(answer, 200, HealthShape), _SPEC + "4.2")
        answer = await self.coordinator.get("/readyz")
        wrong = misfit(answer.body, ReadinessShape)
        if wrong is None and (answer.status == 200) != answer.fields["ready"]:
            wrong = f"{answer.status} with ready {answer.fields['ready']}"
        self._judge("health", "GET /readyz", "200 and ready, or 503 and a reason", wrong, _SPEC + "4.2")

    async def _deployment(self) -> None:
        answer = await self.coordinator.get("/evm/chain")
        wrong = not_like(answer, 200, DeploymentFields[Digits])
        self._judge("deployment", "GET /evm/chain", "200, the deployment", wrong, _SPEC + "4.4")
        self.chain = answer.fields if wrong is None else {}
        answer = await self.coordinator.get(f"/auth/nonce?address={_NOBODY}")
        wrong = not_like(answer, 200, Nonce)
        if wrong is None and answer.fields["chain_id"] != self.chain.get("chain_id"):
            wrong = f"chain_id {answer.fields['chain_id']}"
        if wrong is None and not 240 <= answer.fields["expires_at"] - time.time() <= 360:
            wrong = f"expires_at {answer.fields['expires_at']}, which is not in 300 s of this machine's clock"
        self._judge("sessions", "GET /auth/nonce", "200, a nonce for 300 s on this chain", wrong, _SPEC + "4.3")

    # --- lists --------------------------------------------------------------------------------------------

    async def _listing(self, path: str, member: str, area: str) -> None:
        answer = await self.coordinator.get(path)
        self._judge(area, f"GET {path}", "200, the list", not_like(answer, 200, _LISTS[path]), _SPEC + "4.5 to 4.11")
        rows = answer.fields.get(member)
        if answer.status != 200 or not isinstance(rows, list):
            return
        cut = answer.headers.get("x-svc-page-truncated")
        wrong = None if cut in ("true", "false") else f"x-svc-page-truncated: {cut}"
        self._judge("paging", f"header of GET {path}", "x-svc-page-truncated is always set", wrong, _SPEC + "4.1")
        if path == "/evm/asks":
            self.asks = rows
        elif path == "/evm/providers":
            self.providers = rows
        elif path == "/v1/models":
            self.models = rows
        if len(rows) < 2:
            self.coordinator.report.leave("paging", f"pages of GET {path}", "fewer than two rows", _SPEC + "4.1")
            return
        pages = [await self.coordinator.get(f"{path}?limit=1&offset={at}") for at in range(2)]
        got = [page.fields.get(member) for page in pages]
        wrong = None if got == [[row] for row in rows[:2]] else f"{got}"
        self._judge("paging", f"pages of GET {path}", "limit=1 at offsets 0 and 1: the first two", wrong, _SPEC + "4.1")
        blank = await self.coordinator.get(f"{path}?limit=&offset=")
        wrong = None if _same(blank, answer, member) else str(blank)
        self._judge("paging", f"empty values at GET {path}", "count as absent", wrong, _SPEC + "4.1")

    async def _models(self) -> None:
        answer = await self.coordinator.get("/evm/models")
        wrong = None if answer.fields.get("data") == self.models else str(answer)
        self._judge("catalogue", "GET /evm/models", "the same list as GET /v1/models", wrong, _SPEC + "4.5")
        answer = await self.coordinator.get("/v1/models/no/such-model")
        wrong = not_like(answer, 404, ModelNotFound)
        self._judge("catalogue", "model that there is none of", "404 model_not_found", wrong, _SPEC + "4.5")
        for model in self.models[:1]:
            for spelling, name in (("as it is", model["id"]), ("percent-encoded", model["id"].replace("/", "%2F"))):
                answer = await self.coordinator.get(f"/v1/models/{name}")
                wrong = not_like(answer, 200, ModelAsOf)
                if wrong is None and answer.fields["svc"] != model["svc"]:
                    wrong = str(answer)
                self._judge("catalogue", f"model by name, {spelling}", "200, as in the list", wrong, _SPEC + "4.5")

    # --- the book -----------------------------------------------------------------------------------------

    async def _jobs(self) -> None:
        for order in ("oldest", "newest"):
            answer = await self.coordinator.get(f"/evm/jobs?order={order}")
            blocks = [int(row["posted_block"]) for row in answer.fields.get("jobs", [])]
            wrong = None if blocks == sorted(blocks, reverse=order == "newest") else f"posted_block {blocks[:8]}"
            self._judge("book", f"order={order}", "rows by the block that posted them", wrong, _SPEC + "4.9")
        found: dict[int, Body] = {}
        for name, state in zip(("Open", "Claimed", "Settled", "Cancelled"), states.JobState, strict=True):
            answer = await self.coordinator.get(f"/evm/jobs?state={name}")
            rows = answer.fields.get("jobs", [])
            others = sorted({row["state"] for row in rows} - {int(state)})
            wrong = not_like(answer, 200, JobList) or (f"states {others}" if others else None)
            self._judge("book", f"state={name}", f"rows of state {int(state)} alone", wrong, _SPEC + "4.9")
            found |= {int(state): row for row in rows[:1]}
        if not found:
            self.coordinator.report.leave("jobs", "both views of a job", "the book is empty", _SPEC + "4.6")
        for state_number, row in found.items():
            await self._views(state_number, row)
        owner = next((row["owner"] for row in found.values()), _NOBODY)
        answer = await self.coordinator.get(f"/evm/jobs/summary?owner={owner}")
        wrong = not_like(answer, 200, Summary)
        if wrong is None:
            totals = {name: sum(int(one[name]) for one in answer.fields["by_model"]) for name in _SUMMED}
            wrong = None if all(totals[name] == int(answer.fields[name]) for name in _SUMMED) else str(answer)
        self._judge("book", "summary of an owner", "totals that are the sums of by_model", wrong, _SPEC + "4.9")

    async def _views(self, state: int, row: Body) -> None:
        """Read one job from the book and from its owner's view."""
        job = row["job_id"]
        booked, followed = await self.coordinator.get(f"/evm/jobs/{job}"), await self.coordinator.get(f"/v1/jobs/{job}")
        wrong = not_like(booked, 200, JobAsOf)
        if wrong is None and any(booked.fields[name] != row[name] for name in ("owner", "c", "rate_in", "task_cid")):
            wrong = str(booked)
        self._judge("book", f"row of a job in state {state}", "200, as in the list", wrong, _SPEC + "4.9")
        wrong = not_like(followed, 200, ClientJob)
        if wrong is None:
            details = followed.fields["svc"]
            status = states.job_status(details["state"], details["ended_because"])
            claimed = details["state"] == states.JobState.CLAIMED or details["provider_id"] != "0"
            if followed.fields["status"] != status:
                wrong = f"status {followed.fields['status']}"
            elif claimed != (followed.fields["in_progress_at"] is not None):
                wrong = f"in_progress_at {followed.fields['in_progress_at']}, provider_id {details['provider_id']}"
        expected = "200, status by state and ended_because, in_progress_at once claimed"
        self._judge("jobs", f"GET /v1/jobs/… in state {state}", expected, wrong, "protocol/guide.md#the-life-of-a-job")

    async def _providers(self) -> None:
        ids = [int(row["provider_id"]) for row in self.providers]
        wrong = None if ids == sorted(set(ids)) else f"provider_id {ids[:8]}"
        self._judge("providers", "order of the providers", "by id, each once", wrong, _SPEC + "4.11")
        for row in self.providers[:1]:
            answer = await self.coordinator.get(f"/evm/providers/{row['provider_id']}")
            wrong = not_like(answer, 200, _ProviderById)
            if wrong is None and answer.fields["operator"] != row["operator"]:
                wrong = str(answer)
            self._judge("providers", "provider by id", "200, as in the list", wrong, _SPEC + "4.11")
        listed = {row["provider_id"] for row in self.providers if row["listed"]}
        stray = sorted({row["provider_id"] for row in self.asks} - listed)
        wrong = f"asks of {stray}" if stray and len(self.providers) < 100 else None
        self._judge("asks", "whose asks are told", "listed providers alone", wrong, _SPEC + "4.11")

    async def _not_modified(self) -> None:
        """The index changes with every block. Retry a few times until two requests see the same index."""
        wrong: str | None = "no etag"
        for _ in range(4):
            first = await self.coordinator.get("/evm/jobs")
            if (tag := first.headers.get("etag")) is None:
                break
            second = await self.coordinator.get("/evm/jobs", headers={"if-none-match": tag})
            wrong = None if second.status == 304 and not second.content else f"{second.status} to {tag}"
            if wrong is None:
                break
        self._judge("headers", "if-none-match with the last ETag", "304 without a body", wrong,
                    "protocol/guide.md#parties-and-calls")  # fmt: skip

    # --- escrow, claims, prices ---------------------------------------------------------------------------

    async def _escrow(self) -> None:
        answer = await self.coordinator.get("/key")
        page = "protocol/formats.md#escrow-evidence"
        if answer.status == 403:
            wrong = not_refused(answer, 403, ("invalid_request_error", "authentication_error"),
                                code="escrow_unavailable")  # fmt: skip
            self._judge("escrow", "GET /key", "the key, or 403 escrow_unavailable", wrong, page)
        else:
            wrong = not_like(answer, 200, Key[PublishedEvidence])
            self._judge("escrow", "GET /key", "the key, or 403 escrow_unavailable", wrong, page)
            if wrong is None:
                self.escrow = answer.fields
                self._judge("escrow", "report_data", "sha256 of the key and the label", _unbound(answer), page)
        body = {"job_id": _NO_JOB, "seed_wrap": "", "ct_hash": _NO_JOB, "response_pubkey": "11" * 32}
        large = {**body, "issued_at": 1, "signature": "0x" + "11" * 65, "more": "x" * (2 * KIB)}
        wrong = not_refused(await self.coordinator.post("/release", large), 413, _BAD, code="body_too_large")
        self._judge("escrow", "release of more than 2 KiB", "413 body_too_large", wrong, _SPEC + "Limits")
        if self.escrow is not None:
            stale = {**body, "issued_at": int(time.time()) - 1000, "signature": "0x" + "11" * 65}
            answer = await self.coordinator.post("/release", {**stale, "seed_wrap": "AAAA"})
            wrong = not_refused(answer, 400, _BAD)
            if wrong is None and answer.fields["error"]["code"] not in ("stale_issued_at", "bad_container"):
                wrong = str(answer)
            expected = "400 stale_issued_at or bad_container"
            self._judge("escrow", "release signed too long ago", expected, wrong, "protocol/guide.md#times")

    async def _simulate(self) -> None:
        answer = await self.coordinator.post("/evm/simulate/claim", {"job_id": _NO_JOB, "address": _NOBODY})
        wrong = not_like(answer, 200, ClaimRefused)
        if wrong is None and answer.fields["reason"] != "UnknownJob":
            wrong = str(answer)
        expected = "200 {ok: false, reason: UnknownJob}"
        self._judge("ops", "simulated claim of no job", expected, wrong, _SPEC + "4.10")

    async def _probe(self) -> None:
        """Send an unsigned probe of the market's prices."""
        if not self.models:
            self.coordinator.report.leave("quotes", "probe of the market", "no models", _SPEC + "4.6")
            return
        sizes = {"sla_secs": 3600, "units_in": 1000, "units_out": 1000}
        answer = await self.coordinator.post("/v1/jobs", {"model_id": self.models[0]["svc"]["model_id"], **sizes})
        wrong = not_like(answer, 402, Candidates[Digits])
        if wrong is None and set(answer.fields) != {"candidates"}:
            wrong = f"members {sorted(answer.fields)}"
        if wrong is None:
            costs = [int(row["rate_in"]) * 1000 + int(row["rate_out"]) * 1000 for row in answer.fields["candidates"]]
            wrong = None if costs == sorted(costs) else f"costs {costs}"
        self._judge("quotes", "probe of the market", "402 {candidates}, cheapest first", wrong, _SPEC + "4.6")
        for missing in ("model_id", "sla_secs", "units_in", "units_out"):
            body = {"model_id": "1", **sizes}
            del body[missing]
            wrong = not_refused(await self.coordinator.post("/v1/jobs", body), 400, _BAD, param=missing)
            self._judge("quotes", f"probe without {missing}", f"400, param {missing}", wrong, _SPEC + "4.6")


_SUMMED: Final = ("jobs", "completed", "priced", "escrowed")


def _param(param: str | None) -> Body:
    return {} if param is None else {"param": param}


def _same(one: Answer, other: Answer, member: str) -> bool:
    rows, others = one.fields.get(member), other.fields.get(member)
    return isinstance(rows, list) and isinstance(others, list) and len(rows) == len(others)


def _unbound(answer: Answer) -> str | None:
    try:
        key = read_bare_hex(answer.fields["escrow_public_key"], 32, "escrow_public_key")
    except Refused as refusal:
        return refusal.message
    wanted = hashlib.sha256(key + b"svc-coordinator-escrow-v1").hexdigest()
    told = answer.fields["evidence"]["report_data"]
    return None if told == wanted else f"report_data {told}"
