"""Response bodies of the job book and the registries, built from rows of the index."""

from collections.abc import Mapping
from typing import Any

import asyncpg

from common import quotes, strict_json
from common.api import jobs, limits, market
from common.api.shapes import OMITTED, Digits
from common.bundle import announced_max_items
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.posted_jobs_sql import ORDER_INTEGER_FIELDS
from coordinatord.api.book.registries_sql import ModelRow, ProviderRow
from coordinatord.api.book.reliability_sql import ReliabilityRow


def model_shape(row: ModelRow) -> market.ModelShape:
    return market.ModelShape(row.name, row.owned_by, _model_details(row))


def model_shape_as_of(row: ModelRow, block: int) -> market.ModelAsOf:
    return market.ModelAsOf(id=row.name, owned_by=row.owned_by, svc=_model_details(row), as_of_block=str(block))


def _model_details(row: ModelRow) -> market.ModelDetails[Digits]:
    schema = parse_published_json(row.params_schema.encode())
    if not isinstance(schema, dict):
        return market.ModelDetails(str(row.model_id), row.enabled, OMITTED, OMITTED)
    endpoint = schema.get(market.ENDPOINT_KEYWORD)
    shown_endpoint = endpoint if isinstance(endpoint, str) and endpoint else OMITTED
    return market.ModelDetails(str(row.model_id), row.enabled, schema, shown_endpoint)


def _provider_fields(row: ProviderRow) -> dict[str, Any]:
    evidence = _parse_evidence(row.evidence)
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
        "reliability": reliability_shape(row.reliability),
        "largest_bundle": _largest_bundle(evidence),
    }


def provider_shape(row: ProviderRow) -> market.ProviderShape:
    return market.ProviderShape(**_provider_fields(row))


def provider_shape_as_of(row: ProviderRow, block: int) -> market.ProviderAsOf:
    return market.ProviderAsOf(**_provider_fields(row), as_of_block=str(block))


def _parse_evidence(raw: bytes | None) -> object:
    """Return the JSON that the provider published, or the hex of bytes that are not JSON."""
    return parse_published_json(raw, hex_of(raw)) if raw else None


def _largest_bundle(evidence: object) -> int:
    """Return the size of the largest bundle that the evidence announces, or OMITTED if the evidence announces none."""
    largest = announced_max_items(evidence)
    return OMITTED if largest is None else largest


def reliability_shape(row: ReliabilityRow) -> market.Reliability[Digits]:
    median = None if row.median_secs is None else str(row.median_secs)
    return market.Reliability(
        str(limits.RELIABILITY_PERIOD_S),
        str(row.settled),
        str(row.failed),
        str(row.reclaimed),
        median,
        digits_or_omitted(row.units_per_sec),
    )


def pending_job_shape(job: PendingJob) -> jobs.PendingJobShape:
    order, terms = job.posted.order, job.posted.terms
    amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    return jobs.PendingJobShape(
        job_id=hex_of(job.posted.job_id),
        owner=hex_of(job.posted.owner),
        c=hex_of(order.c),
        **{name: str(getattr(order, name)) for name in ORDER_INTEGER_FIELDS},
        task_cid=job.task_cid,
        signature=hex_of(job.order_sig),
        auth_sig=hex_of(job.pay_sig),
        amount=str(amount),
        fee_bps=terms.fee_bps,
        gas_fee=str(terms.gas_fee),
    )


def trace_shapes(contexts: Mapping[bytes, str]) -> list[jobs.JobTraceShape]:
    return [jobs.JobTraceShape(hex_of(job_id), context) for job_id, context in contexts.items()]


def ask_shape(row: asyncpg.Record) -> market.AskShape[Digits]:
    provider_id, model_id, sla, rate_in, rate_out, *sums, announcement = row[:11]
    return market.AskShape(
        *(str(provider_id), str(model_id), str(sla), rate_in, rate_out),
        reliability_shape(ReliabilityRow(*sums)),
        _largest_bundle(_parse_evidence(announcement)),
    )


def floor_shape(row: asyncpg.Record) -> market.Floor[Digits]:
    return market.Floor(str(row["model_id"]), str(row["sla"]), row["rate_in"], row["rate_out"])


def allowlist_entry_shape(row: asyncpg.Record) -> market.AllowlistEntry:
    entry = parse_published_json(row["entry"].encode())
    return market.AllowlistEntry(hex_of(row["key"]), row["status"], entry if isinstance(entry, dict) else {})


def parse_published_json(raw: bytes, default: object = None) -> object:
    """Parse JSON that was published on the chain. Return `default` if the bytes are not valid JSON, because the chain
    accepts any bytes."""
    try:
        return strict_json.parse(raw)
    except Refused:
        return default


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
    """Return the number as digits, or OMITTED for None."""
    return OMITTED if value is None else str(value)


def job_shape(row: JobRow) -> jobs.JobShape[Digits]:
    return jobs.JobShape(**_job_fields(row))


def job_shape_as_of(row: JobRow, block: int) -> jobs.JobAsOf:
    return jobs.JobAsOf(**_job_fields(row), as_of_block=str(block))


def summary_shape(rows: list[asyncpg.Record], block: int) -> jobs.Summary:
    """Return the summary of an owner's jobs. The first row has the total, and each other row the sums of one model.
    Every job has a price, so `priced` equals `jobs`."""
    sums = [(str(row["jobs"]), str(row["completed"]), str(row["jobs"]), row["escrowed"]) for row in rows]
    models = (jobs.ModelSummary(*each, str(row["model_id"])) for each, row in zip(sums[1:], rows[1:], strict=True))
    return jobs.Summary(*sums[0], tuple(models), str(block))
