"""The bodies of answers. Their types yield the OpenAPI document, so what is documented is what is sent.

Integers that may exceed 32 bits, and ids, are decimal strings; small enumerations are numbers.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common import scalars, strict_json
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.store.allowlist import AllowlistRow
from coordinatord.store.asks import AskRow, FloorRow
from coordinatord.store.catalog import ModelRow
from coordinatord.store.jobs import JobRow, OwnerSummary
from coordinatord.store.market import Candidate
from coordinatord.store.providers import ProviderRow

Digits = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]*)$", description="a decimal integer")]
SignedDigits = Annotated[str, Meta(pattern=r"^(0|-?[1-9][0-9]*)$", description="a decimal integer")]
HexBytes = Annotated[str, Meta(pattern=r"^0x([0-9a-f]{2})*$")]
Address = Annotated[str, Meta(pattern=r"^0x[0-9a-f]{40}$")]
Bytes32 = Annotated[str, Meta(pattern=r"^0x[0-9a-f]{64}$")]

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "invalid_op_signature",
    "not_found",
    "busy",
    "not_ready",
    "chain_unreachable",
    "relay_unavailable",
    "pinner_unavailable",
    "receipt_timeout",
    "internal_error",
]


class ErrorBody(msgspec.Struct):
    message: str
    type: ErrorType
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    error: ErrorBody


class ModelNotFoundBody(msgspec.Struct):
    message: str
    type: ErrorType
    code: Literal["model_not_found"]


class ModelNotFound(msgspec.Struct):
    error: ModelNotFoundBody


class Health(msgspec.Struct):
    status: Literal["ok"]


class Readiness(msgspec.Struct):
    ready: bool
    reason: Literal["ready", "cold_start", "trailing", "reorg", "chain_unreachable"]
    cursor: Digits | None
    head_block: Digits | None
    lag: SignedDigits | None


class Nonce(msgspec.Struct):
    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    expires_at: int
    chain_id: int


class Session(msgspec.Struct):
    token: str
    expires_at: int
    provider_id: int | UnsetType = UNSET


class ModelDetails(msgspec.Struct):
    model_id: Digits
    enabled: bool
    params_schema: dict[str, Any] | UnsetType = UNSET


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    owned_by: str
    svc: ModelDetails


class ModelAsOf(Model):
    as_of_block: Digits


class Job(msgspec.Struct):
    """A row of the job book."""

    job_id: Bytes32
    owner: Address
    c: Bytes32
    model_id: Digits
    sla_secs: Digits
    designated: Digits
    rate_in: Digits
    rate_out: Digits
    units_in: Digits
    units_out: Digits
    expires_at: Digits
    provider_id: Digits
    claimed_at: Digits
    completion_tok: Digits
    posted_block: Digits
    state: int
    ended_because: int
    task_cid: str
    result_cid: str | None


class JobAsOf(Job):
    as_of_block: Digits


class ClientJobDetails(msgspec.Struct):
    job_id: Bytes32
    owner: Address
    model_id: Digits
    sla_secs: Digits
    rate_in: Digits
    rate_out: Digits
    units_in: Digits
    units_out: Digits
    designated: Digits
    provider_id: Digits
    expires_at: Digits
    task_cid: str
    completion_tok: Digits
    state: int
    ended_because: int


class ClientJob(msgspec.Struct):
    id: Bytes32
    object: Literal["job"]
    model: str | None
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    in_progress_at: Digits | None
    result_cid: str | None
    svc: ClientJobDetails
    as_of_block: Digits


class ModelSummary(msgspec.Struct):
    jobs: Digits
    completed: Digits
    priced: Digits
    escrowed: Digits
    model_id: Digits


class Summary(msgspec.Struct):
    jobs: Digits
    completed: Digits
    priced: Digits
    escrowed: Digits
    by_model: list[ModelSummary]
    as_of_block: Digits


class Provider(msgspec.Struct):
    provider_id: Digits
    operator: Address
    box_key: Bytes32 | None
    evidence: Any
    listed: bool
    reputation: Digits
    allow_all_models: bool
    allowed_models: list[Digits]
    capacity: Digits
    active_jobs: Digits


class ProviderAsOf(Provider):
    as_of_block: Digits


class Ask(msgspec.Struct):
    provider_id: Digits
    model_id: Digits
    sla: Digits
    rate_in: Digits
    rate_out: Digits


class Floor(msgspec.Struct):
    model_id: Digits
    sla: Digits
    rate_in: Digits
    rate_out: Digits


class AllowlistEntry(msgspec.Struct):
    key: HexBytes
    status: int
    entry: dict[str, Any]


class ListedCandidate(msgspec.Struct):
    provider_id: Digits
    box_key: Bytes32
    rate_in: Digits
    rate_out: Digits


def model(row: ModelRow) -> Model:
    return Model(row.name, "model", row.owned_by, _model_details(row))


def model_as_of(row: ModelRow, block: int) -> ModelAsOf:
    return ModelAsOf(
        id=row.name, object="model", owned_by=row.owned_by, svc=_model_details(row), as_of_block=str(block)
    )


def _model_details(row: ModelRow) -> ModelDetails:
    schema = published_json(row.params_schema.encode())
    return ModelDetails(str(row.model_id), row.enabled, schema if isinstance(schema, dict) else UNSET)


def _job_fields(row: JobRow) -> dict[str, Any]:
    return {
        "job_id": hex_of(row.job_id),
        "owner": hex_of(row.owner),
        "c": hex_of(row.c),
        "model_id": str(row.model_id),
        "sla_secs": str(row.sla_secs),
        "designated": str(row.designated),
        "rate_in": row.rate_in,
        "rate_out": row.rate_out,
        "units_in": str(row.units_in),
        "units_out": str(row.units_out),
        "expires_at": str(row.expires_at),
        "provider_id": str(row.provider_id),
        "claimed_at": str(row.claimed_at),
        "completion_tok": str(row.completion_tok),
        "posted_block": str(row.posted_block),
        "state": row.state,
        "ended_because": row.ended_because,
        "task_cid": row.task_cid,
        "result_cid": row.result_cid,
    }


def job(row: JobRow) -> Job:
    return Job(**_job_fields(row))


def job_as_of(row: JobRow, block: int) -> JobAsOf:
    return JobAsOf(**_job_fields(row), as_of_block=str(block))


# By state, and for ended jobs by why: failed by the provider or reclaimed is a failure, the rest a cancellation.
_OPEN_STATUS: dict[int, Any] = {0: "queued", 1: "in_progress", 2: "completed"}
_FAILURES = (3, 4)


def client_job(row: JobRow, block: int) -> ClientJob:
    job_id = hex_of(row.job_id)
    # By position: this is the read that every client repeats, and names double the cost of building it.
    return ClientJob(
        job_id,
        "job",
        row.model,
        _OPEN_STATUS.get(row.state) or ("failed" if row.ended_because in _FAILURES else "cancelled"),
        str(row.claimed_at) if row.claimed_at else None,
        row.result_cid,
        ClientJobDetails(
            job_id,
            hex_of(row.owner),
            str(row.model_id),
            str(row.sla_secs),
            row.rate_in,
            row.rate_out,
            str(row.units_in),
            str(row.units_out),
            str(row.designated),
            str(row.provider_id),
            str(row.expires_at),
            row.task_cid,
            str(row.completion_tok),
            row.state,
            row.ended_because,
        ),
        str(block),
    )


def summary(rows: list[OwnerSummary], block: int) -> Summary:
    """`rows`: the total first."""
    total, *models = rows
    return Summary(
        jobs=str(total.jobs),
        completed=str(total.completed),
        priced=str(total.priced),
        escrowed=total.escrowed,
        by_model=[
            ModelSummary(str(m.jobs), str(m.completed), str(m.priced), m.escrowed, str(m.model_id)) for m in models
        ],
        as_of_block=str(block),
    )


def _provider_fields(row: ProviderRow) -> dict[str, Any]:
    return {
        "provider_id": str(row.provider_id),
        "operator": hex_of(row.operator),
        "box_key": hex_of(row.box_key) if row.box_key is not None and any(row.box_key) else None,
        "evidence": _evidence(row.evidence),
        "listed": row.listed,
        "reputation": str(row.reputation),
        "allow_all_models": row.allow_all_models,
        "allowed_models": [str(model_id) for model_id in row.allowed_models],
        "capacity": str(row.capacity),
        "active_jobs": str(row.active_jobs),
    }


def provider(row: ProviderRow) -> Provider:
    return Provider(**_provider_fields(row))


def provider_as_of(row: ProviderRow, block: int) -> ProviderAsOf:
    return ProviderAsOf(**_provider_fields(row), as_of_block=str(block))


def _evidence(raw: bytes | None) -> object:
    """Whatever the provider published: its JSON, or its bytes as hex when they are none."""
    if not raw:
        return None
    try:
        return strict_json.parse(raw)
    except Refused:
        return hex_of(raw)


def ask(row: AskRow) -> Ask:
    return Ask(str(row.provider_id), str(row.model_id), str(row.sla), row.rate_in, row.rate_out)


def floor(row: FloorRow) -> Floor:
    return Floor(str(row.model_id), str(row.sla), row.rate_in, row.rate_out)


def allowlist_entry(row: AllowlistRow) -> AllowlistEntry:
    entry = published_json(row.entry.encode())
    return AllowlistEntry(scalars.hex_of(row.key), row.status, entry if isinstance(entry, dict) else {})


def candidate(row: Candidate) -> ListedCandidate:
    return ListedCandidate(str(row.provider_id), hex_of(row.box_key), row.rate_in, row.rate_out)


def published_json(raw: bytes) -> object:
    """JSON that somebody published on the chain, or None: the chain does not check it."""
    try:
        return strict_json.parse(raw)
    except Refused:
        return None
