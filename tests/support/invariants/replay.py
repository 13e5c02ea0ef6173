"""I4 by an independent replay: applying the contracts' events by their meaning produces the rows of the index.

violations = await replay_violations(connection, log)
assert violations == []

This module implements the meaning of each event a second time. Change it together with the indexer, and do not share
code: the check works because the two were written independently.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import asyncpg
import attrs

from tests.support.invariants.market_log import MarketLog, Told

_OPEN, _CLAIMED, _SETTLED, _CANCELLED = range(4)
_NOT_ENDED, _BY_SETTLE, _BY_OWNER, _BY_FAIL, _BY_RECLAIM, _BY_EXPIRY = range(6)
_ENDS: Final = {
    "JobSettled": (_SETTLED, _BY_SETTLE),
    "JobCancelled": (_CANCELLED, _BY_OWNER),
    "JobFailed": (_CANCELLED, _BY_FAIL),
    "JobReclaimed": (_CANCELLED, _BY_RECLAIM),
}
_FIRST_REPUTATION: Final = 500

Row = dict[str, Any]
Key = tuple[Any, ...]

# Key columns by table. `owner_sums` is left out because the index aggregates its own rows there.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": ("job_id",),
    "models": ("model_id",),
    "slas": ("sla_secs",),
    "fees": ("only_row",),
    "providers": ("provider_id",),
    "provider_models": ("provider_id", "model_id"),
    "asks": ("provider_id", "model_id", "sla"),
    "ask_times": ("provider_id",),
    "allowlist": ("key",),
    "owner_sums": ("owner", "model_id"),
}


@attrs.define
class Replayed:
    """The index's tables as Python values."""

    tables: dict[str, dict[Key, Row]] = attrs.field(factory=lambda: {table: {} for table in _KEYS})

    def enter(self, told: Told) -> None:
        if (of_event := _MEANINGS.get(told.name)) is not None:
            of_event(self, told, told.values)

    def end(self, head_time: int) -> None:
        """Apply what depends on the head's time or on all rows together."""
        sums: dict[Key, Row] = {}
        for row in self.tables["jobs"].values():
            if row["state"] == _OPEN and row["expires_at"] < head_time:
                row |= {"state": _CANCELLED, "ended_because": _BY_EXPIRY}
            key = (row["owner"], row["model_id"])
            zero = {"owner": key[0], "model_id": key[1], "jobs": 0, "completed": 0, "escrowed": 0}
            total = sums.setdefault(key, zero)
            total["jobs"] += 1
            total["completed"] += row["state"] == _SETTLED
            total["escrowed"] += row["cap"]
        self.tables["owner_sums"] = sums

    def put(self, table: str, row: Row) -> None:
        self.tables[table][tuple(row[column] for column in _KEYS[table])] = row

    def job(self, values: Mapping[str, Any]) -> Row:
        return self.tables["jobs"][values["jobId"],]

    def provider(self, values: Mapping[str, Any]) -> Row:
        return self.tables["providers"][values["providerId"],]


def _posted(index: Replayed, told: Told, v: Mapping[str, Any]) -> None:
    micro = v["rateIn"] * v["unitsIn"] + v["rateOut"] * v["unitsOut"]
    index.put(
        "jobs",
        {
            "job_id": v["jobId"],
            "owner": v["owner"],
            "c": v["c"],
            "model_id": v["modelId"],
            "sla_secs": v["slaSecs"],
            "rate_in": v["rateIn"],
            "rate_out": v["rateOut"],
            "units_in": v["unitsIn"],
            "units_out": v["unitsOut"],
            "designated": v["designated"],
            "expires_at": v["expiresAt"],
            "cap": max(1, (micro + 999_999) // 1_000_000),
            "fee_bps": v["feeBps"],
            "gas_fee": v["gasFee"],
            "task_cid": v["taskCid"],
            "pay_sig": v["paySig"],
            "posted_block": told.block,
            "posted_log": told.place,
            "state": _OPEN,
            "ended_because": _NOT_ENDED,
            "provider_id": 0,
            "claimed_at": 0,
            "completion_tok": 0,
            "cost": 0,
            "result_cid": None,
            "ordinal": len(index.tables["jobs"]),
            "ended_at": None,
        },
    )


def _claimed(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
    index.job(v).update(state=_CLAIMED, provider_id=v["providerId"], claimed_at=v["claimedAt"])
    index.provider(v)["active_jobs"] += 1


def _ended(index: Replayed, told: Told, v: Mapping[str, Any]) -> None:
    state, because = _ENDS[told.name]
    job = index.job(v)
    if job["state"] == _CLAIMED:
        index.provider(v)["active_jobs"] -= 1
    job.update(state=state, ended_because=because, ended_at=told.time)
    if state == _SETTLED:
        job.update(completion_tok=v["completionTok"], cost=v["cost"], result_cid=v["resultCid"])


def _registered(index: Replayed, told: Told, v: Mapping[str, Any]) -> None:
    index.put(
        "providers",
        {
            "provider_id": v["providerId"],
            "operator": v["operator"],
            "box_key": None,
            "evidence": None,
            "identity_at": told.time,
            "listed": False,
            "allow_all_models": False,
            "reputation": _FIRST_REPUTATION,
            "requested": 1,
            "ceiling": 0,
            "capacity_at": told.time,
            "active_jobs": 0,
        },
    )


def _deregistered(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
    del index.tables["providers"][v["providerId"],]


def _of_provider(**columns: str) -> "Callable[[Replayed, Told, Mapping[str, Any]], None]":
    """Return a handler that sets columns of the provider's row. `columns`: column by field name."""

    def enter(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
        index.provider(v).update({column: v[field] for column, field in columns.items()})

    return enter


def _model_allowed(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
    row = {"provider_id": v["providerId"], "model_id": v["modelId"]}
    index.tables["provider_models"].pop((row["provider_id"], row["model_id"]), None)
    if v["allowed"]:
        index.put("provider_models", row)


def _asks(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
    provider = v["providerId"]
    index.put("ask_times", {"provider_id": provider, "signed_at": v["signedAt"]})
    for model, sla, rate_in, rate_out in v["quotes"]:
        index.tables["asks"].pop((provider, model, sla), None)
        if rate_in or rate_out:
            rates = {"rate_in": rate_in, "rate_out": rate_out}
            index.put("asks", {"provider_id": provider, "model_id": model, "sla": sla, **rates})


def _row_of(table: str, **columns: str) -> "Callable[[Replayed, Told, Mapping[str, Any]], None]":
    """Return a handler that stores the event as a complete row."""

    def enter(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
        index.put(table, {column: v[field] for column, field in columns.items()})

    return enter


def _fees(index: Replayed, _: Told, v: Mapping[str, Any]) -> None:
    index.put("fees", {"only_row": True, "fee_bps": v["feeBps"], "gas_fee": v["gasFee"]})


_MEANINGS: Final[Mapping[str, Callable[[Replayed, Told, Mapping[str, Any]], None]]] = {
    "JobPosted": _posted,
    "JobClaimed": _claimed,
    **dict.fromkeys(_ENDS, _ended),
    "ModelSet": _row_of(
        "models", model_id="modelId", name="name", enabled="enabled", owned_by="ownedBy", params_schema="paramsSchema"
    ),
    "SlaSet": _row_of("slas", sla_secs="slaSecs", allowed="allowed"),
    "FeesSet": _fees,
    "ProviderRegistered": _registered,
    "ProviderDeregistered": _deregistered,
    "OperatorChanged": _of_provider(operator="operator"),
    "IdentitySet": _of_provider(box_key="boxKey", evidence="evidence", identity_at="issuedAt"),
    "CapacityRequested": _of_provider(requested="n", capacity_at="issuedAt"),
    "ProviderListed": _of_provider(listed="listed"),
    "CeilingSet": _of_provider(ceiling="ceiling"),
    "AllModelsAllowed": _of_provider(allow_all_models="allowed"),
    "StandingSet": _of_provider(reputation="reputation"),
    "ModelAllowed": _model_allowed,
    "AsksPublished": _asks,
    "AllowlistSet": _row_of("allowlist", key="key", status="status", entry="entry"),
}


def replayed(log: MarketLog) -> Replayed:
    index = Replayed()
    for told in log.events:
        index.enter(told)
    index.end(log.time)
    return index


_OF_JOBS: Final = {"JobPosted", "JobClaimed", *_ENDS}


async def job_replay_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", log: MarketLog, since_block: int
) -> list[str]:
    """Compare only the jobs posted since this block, with the log from this block on. Return each violation as a
    sentence."""
    index = Replayed()
    before = int(await connection.fetchval("select count(*) from jobs where posted_block < $1", since_block))
    jobs = index.tables["jobs"]
    for told in log.events:
        if told.name == "JobPosted":
            _posted(index, told, told.values)
            index.job(told.values)["ordinal"] += before
        elif told.name in _OF_JOBS and (told.values["jobId"],) in jobs:
            if (provider := told.values.get("providerId")) is not None:
                index.tables["providers"].setdefault((provider,), {"active_jobs": 0})
            index.enter(told)
    index.end(log.time)
    rows = await connection.fetch("select * from jobs where posted_block >= $1", since_block)
    return _differences("jobs", rows, jobs)


async def replay_violations(connection: "asyncpg.Connection[asyncpg.Record]", log: MarketLog) -> list[str]:
    """Return each violation as a sentence. The index must have reached the log's head, and no block may be mined during
    the call."""
    found = []
    index = replayed(log)
    for table in _KEYS:
        rows = await connection.fetch(f"select * from {table}")  # noqa: S608 - constants
        found += _differences(table, rows, index.tables[table])
    return found


def _differences(table: str, rows: Iterable[Mapping[str, Any]], wanted: Mapping[Key, Row]) -> list[str]:
    indexed = {tuple(row[column] for column in _KEYS[table]): {k: _number(v) for k, v in row.items()} for row in rows}
    return [
        f"I4: {table} {_named(one)} is {_apart(indexed.get(one), wanted.get(one))}"
        for one in indexed.keys() | wanted.keys()
        if _differ(indexed.get(one), wanted.get(one))
    ]


def _differ(indexed: Row | None, wanted: Row | None) -> list[str]:
    """Return the columns that differ. A column that only a newer release fills is ignored."""
    one, other = indexed or {}, wanted or {}
    return sorted(column for column in one.keys() | other.keys() if one.get(column) != other.get(column))


def _apart(indexed: Row | None, wanted: Row | None) -> str:
    if indexed is None or wanted is None:
        return "in the index, but not on the chain" if wanted is None else "on the chain, but not in the index"
    told = {column: (indexed.get(column), wanted.get(column)) for column in _differ(indexed, wanted)}
    return f"different from a replay of the chain's events (index, chain): {told}"


def _named(key: Key) -> str:
    return " ".join(part.hex() if isinstance(part, bytes) else str(part) for part in key)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) else value
