"""Bodies of the job book and the registries: shapes of the API from rows of the index."""

from typing import Any

from common import quotes, scalars, strict_json
from common.api import jobs, limits, market
from common.api.shapes import OMITTED, Digits
from common.bundle import announced
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.owner_sums_sql import OwnerSummary
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.registries_sql import AllowlistRow, AskRow, FloorRow, ModelRow, ProviderRow
from coordinatord.api.book.reliability_sql import ReliabilityRow


def model(row: ModelRow) -> market.ModelShape:
    return market.ModelShape(row.name, row.owned_by, _model_details(row))


def model_as_of(row: ModelRow, block: int) -> market.ModelAsOf:
    return market.ModelAsOf(id=row.name, owned_by=row.owned_by, svc=_model_details(row), as_of_block=str(block))


def _model_details(row: ModelRow) -> market.ModelDetails[Digits]:
    schema = published_json(row.params_schema.encode())
    if not isinstance(schema, dict):
        return market.ModelDetails(str(row.model_id), row.enabled, OMITTED, OMITTED)
    endpoint = schema.get(market.ENDPOINT_KEYWORD)
    named = endpoint if isinstance(endpoint, str) and endpoint else OMITTED
    return market.ModelDetails(str(row.model_id), row.enabled, schema, named)


def _provider_fields(row: ProviderRow) -> dict[str, Any]:
    evidence = _evidence(row.evidence)
    return {
        "provider_id": str(row.provider_id),
        "operator": hex_of(row.operator),
        "box_key": hex_of(row.box_key) if row.box_key is not None and any(row.box_key) else None,
        "evidence": evidence,
        "listed": row.listed,
        "reputation": str(row.reputation),
        "allow_all_models": row.allow_all_models,
        "allowed_models": tuple(str(model_id) for model_id in row.allowed_models),
        "capacity": str(row.capacity),
        "active_jobs": str(row.active_jobs),
        "requested": str(row.requested),
        "reliability": reliability(row.reliability),
        "largest_bundle": _largest_bundle(evidence),
    }


def provider(row: ProviderRow) -> market.ProviderShape:
    return market.ProviderShape(**_provider_fields(row))


def provider_as_of(row: ProviderRow, block: int) -> market.ProviderAsOf:
    return market.ProviderAsOf(**_provider_fields(row), as_of_block=str(block))


def _evidence(raw: bytes | None) -> object:
    """Return the JSON that the provider published, or the hex of bytes that are not JSON."""
    if not raw:
        return None
    try:
        return strict_json.parse(raw)
    except Refused:
        return hex_of(raw)


def _largest_bundle(evidence: object) -> int:
    """Return the announced size, or leave the member out."""
    largest = announced(evidence)
    return OMITTED if largest is None else largest


def reliability(row: ReliabilityRow) -> market.Reliability[Digits]:
    median = None if row.median_secs is None else str(row.median_secs)
    return market.Reliability(
        str(limits.RELIABILITY_PERIOD_S),
        str(row.settled),
        str(row.failed),
        str(row.reclaimed),
        median,
        digits_or_omitted(row.units_per_sec),
    )


def pending_job(job: PendingJob) -> jobs.PendingJobShape:
    order, terms = job.posted.order, job.posted.terms
    amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    return jobs.PendingJobShape(
        job_id=hex_of(job.posted.job_id),
        owner=hex_of(job.posted.owner),
        c=hex_of(order.c),
        model_id=str(order.model_id),
        sla_secs=str(order.sla_secs),
        designated=str(order.designated),
        rate_in=str(order.rate_in),
        rate_out=str(order.rate_out),
        units_in=str(order.units_in),
        units_out=str(order.units_out),
        expires_at=str(order.expires_at),
        task_cid=job.task_cid,
        signature=hex_of(job.order_sig),
        auth_sig=hex_of(job.pay_sig),
        amount=str(amount),
        fee_bps=terms.fee_bps,
        gas_fee=str(terms.gas_fee),
    )


def ask(row: AskRow) -> market.AskShape[Digits]:
    return market.AskShape(
        str(row.provider_id),
        str(row.model_id),
        str(row.sla),
        row.rate_in,
        row.rate_out,
        reliability(row.reliability),
        _largest_bundle(_evidence(row.announcement)),
    )


def floor(row: FloorRow) -> market.Floor[Digits]:
    return market.Floor(str(row.model_id), str(row.sla), row.rate_in, row.rate_out)


def allowlist_entry(row: AllowlistRow) -> market.AllowlistEntry:
    entry = published_json(row.entry.encode())
    return market.AllowlistEntry(scalars.hex_of(row.key), row.status, entry if isinstance(entry, dict) else {})


def published_json(raw: bytes) -> object:
    """Return JSON that was published on the chain, or None for other bytes: the chain does not check them."""
    try:
        return strict_json.parse(raw)
    except Refused:
        return None


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
        "reclaimable_at": digits_or_omitted(row.reclaimable_at),
        "ended_at": digits_or_omitted(row.ended_at),
    }


def digits_or_omitted(value: int | None) -> str:
    """Return the number, or leave the member out."""
    return OMITTED if value is None else str(value)


def job(row: JobRow) -> jobs.JobShape[Digits]:
    return jobs.JobShape(**_job_fields(row))


def job_as_of(row: JobRow, block: int) -> jobs.JobAsOf:
    return jobs.JobAsOf(**_job_fields(row), as_of_block=str(block))


def summary(rows: list[OwnerSummary], block: int) -> jobs.Summary:
    """Return the summary of rows that begin with the total."""
    total, *models = rows
    return jobs.Summary(
        jobs=str(total.jobs),
        completed=str(total.completed),
        priced=str(total.priced),
        escrowed=total.escrowed,
        by_model=tuple(
            jobs.ModelSummary(str(m.jobs), str(m.completed), str(m.priced), m.escrowed, str(m.model_id)) for m in models
        ),
        as_of_block=str(block),
    )
