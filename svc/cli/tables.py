"""Tables of the market's records. Rates are in base units per 10^6 units, so that they can be copied into an order."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from svc.cli.drawing import Table
from svc.core.money import format_token_amount
from svc.core.windows import format_window
from svc.records import (
    CODE_BY_ENDED_BECAUSE,
    Ask,
    Batch,
    BookRow,
    Candidate,
    Floor,
    Model,
    ModelPlan,
    Provider,
    Reliability,
    Why,
)
from svc.verification import SourcedFact

_OPEN, _CLAIMED, _SETTLED = 0, 1, 2
_DURATION_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RATE_COLUMNS: Final = frozenset({"rate in", "rate out"})
_RELIABILITY_COLUMNS: Final = ("settled", "median")  # over the last seven days


def models_table(records: Iterable[Model]) -> Table:
    rows = [(model.id, str(model.svc.model_id), model.owned_by, _format_flag(model.svc.enabled)) for model in records]
    return Table(("model", "id", "owned by", "enabled"), rows, frozenset({"id"}))


def asks_table(records: Iterable[Ask], model_names: Mapping[int, str]) -> Table:
    rows = [
        (
            model_name_of(ask.model_id, model_names),
            format_window(ask.sla),
            str(ask.provider_id),
            str(ask.rate_in),
            str(ask.rate_out),
            *_reliability_cells(ask.reliability),
        )
        for ask in records
    ]
    return Table(
        ("model", "window", "provider", "rate in", "rate out", *_RELIABILITY_COLUMNS),
        rows,
        _RATE_COLUMNS | {"provider", *_RELIABILITY_COLUMNS},
    )


def _reliability_cells(reliability: Reliability | None) -> tuple[str | None, str | None]:
    """Return `settled/ended` for recent jobs (`new` if no job has ended), and the median time of a job."""
    if reliability is None:
        return None, None
    ended = reliability.settled + reliability.failed + reliability.reclaimed
    median = None if reliability.median_secs is None else format_duration(reliability.median_secs)
    return f"{reliability.settled}/{ended}" if ended else "new", median


def floors_table(records: Iterable[Floor], model_names: Mapping[int, str]) -> Table:
    rows = [
        (model_name_of(floor.model_id, model_names), format_window(floor.sla), str(floor.rate_in), str(floor.rate_out))
        for floor in records
    ]
    return Table(("model", "window", "rate in", "rate out"), rows, _RATE_COLUMNS)


def providers_table(records: Iterable[Provider], model_names: Mapping[int, str]) -> Table:
    rows = [
        (
            str(provider.provider_id),
            provider.operator,
            _format_flag(provider.listed),
            str(provider.reputation),
            f"{provider.active_jobs}/{provider.capacity}",
            "all"
            if provider.allow_all_models
            else ", ".join(model_name_of(each, model_names) for each in provider.allowed_models),
            _format_flag(provider.box_key is not None),
            *_reliability_cells(provider.reliability),
        )
        for provider in records
    ]
    columns = ("provider", "wallet", "listed", "reputation", "busy", "models", "has box key", *_RELIABILITY_COLUMNS)
    return Table(
        columns, rows, frozenset({"provider", "reputation", "busy", *_RELIABILITY_COLUMNS}), frozenset({"wallet"})
    )


def jobs_table(records: Iterable[BookRow], model_names: Mapping[int, str], now: float) -> Table:
    """Return the table of jobs. `now` is the coordinator's time.

    The column `left` is the time left to settle a claimed job, or to claim an open one.
    """
    rows = [
        (
            row.job_id,
            model_name_of(row.model_id, model_names),
            job_status(row),
            _time_left(row, now),
            format_window(row.sla_secs),
            str(row.provider_id) if row.provider_id else None,
            str(row.rate_in),
            str(row.rate_out),
            f"{row.units_in}/{row.units_out}",
        )
        for row in records
    ]
    columns = ("job", "model", "status", "left", "window", "provider", "rate in", "rate out", "units")
    return Table(columns, rows, _RATE_COLUMNS | {"left", "provider", "units"}, frozenset({"job"}))


def batches_table(records: Iterable[Batch]) -> Table:
    rows = [
        (
            batch.id,
            batch.endpoint,
            batch.completion_window,
            batch.status,
            *(str(count) for count in (counts.completed, counts.failed, counts.total)),
            format_time(batch.created_at),
        )
        for batch in records
        for counts in (batch.request_counts,)
    ]
    columns = ("batch", "endpoint", "window", "status", "completed", "failed", "total", "created")
    return Table(columns, rows, frozenset({"completed", "failed", "total"}), frozenset({"batch"}))


def plan_table(planned: Iterable[ModelPlan], model_names: Mapping[int, str]) -> Table:
    """Return a row for each provider that gets lines, and for each model a row for the lines without a provider."""
    rows: list[Sequence[str | None]] = []
    for each in planned:
        name = model_name_of(each.model_id, model_names)
        rows += [
            (name, str(share.provider_id), str(share.lines), str(share.rate_in), str(share.rate_out))
            for share in each.allocation
        ]
        unplaced = each.lines - sum(share.lines for share in each.allocation)
        if unplaced:
            rows.append((name, "none", str(unplaced), None, None))
    return Table(("model", "provider", "lines", "rate in", "rate out"), rows, _RATE_COLUMNS | {"provider", "lines"})


def describe_live_providers(candidates: Iterable[Candidate]) -> str:
    """List the providers that could accept an order now, with their free capacity.

    >>> describe_live_providers([])
    'none with free capacity at these rates'
    """
    texts = [
        f"{each.provider_id}" if each.room is None else f"{each.provider_id} (room for {each.room})"
        for each in candidates
    ]
    return ", ".join(texts) or "none with free capacity at these rates"


def why_table(report: Why) -> Table:
    rows = [
        (str(each.provider_id), _format_flag(each.takes), "; ".join(reason.said for reason in each.reasons) or None)
        for each in report.providers
    ]
    return Table(("provider", "accepts", "reasons"), rows, frozenset({"provider"}))


def verification_table(facts: Iterable[SourcedFact]) -> Table:
    rows = [(each.fact, each.value, each.source.value) for each in facts]
    return Table(("fact", "value", "verified by"), rows, never_cut=frozenset({"value"}))


def job_status(row: BookRow) -> str:
    """Return the status of a job in the book, with the SDK's name for the status."""
    known = {_OPEN: "queued", _CLAIMED: "in_progress", _SETTLED: "completed"}
    return known.get(row.state) or CODE_BY_ENDED_BECAUSE.get(row.ended_because, "ended")


def _time_left(row: BookRow, now: float) -> str | None:
    if row.state == _OPEN:
        return format_duration(row.expires_at - now)
    return None if row.reclaimable_at is None else format_duration(row.reclaimable_at - now)


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units, rounded down. A negative duration is 0 s.

    >>> format_duration(3725), format_duration(59.9), format_duration(-1)
    ('1 h 2 min', '59 s', '0 s')
    """
    left, parts = max(0, int(seconds)), list[str]()
    for size, unit in _DURATION_UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def model_name_of(model_id: int, model_names: Mapping[int, str]) -> str:
    return model_names.get(model_id, f"model {model_id}")


def format_time(unix_seconds: int | None) -> str | None:
    """Format a Unix time. The system's calendar is not used, because its range differs between platforms."""
    if unix_seconds is None:
        return None
    try:
        return (_EPOCH + timedelta(seconds=unix_seconds)).strftime("%Y-%m-%d %H:%M:%SZ")
    except OverflowError:
        return str(unix_seconds)


def format_amount(amount: int, decimals: int, name: str) -> str:
    return f"{format_token_amount(amount, decimals)} {name}"


def _format_flag(flag: bool) -> str:
    return "yes" if flag else "no"
