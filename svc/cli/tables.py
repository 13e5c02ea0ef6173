"""Tables for people. Rates are in base units per 10^6 units, as orders name them, so that they can be pasted."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from svc.cli.drawing import Table
from svc.core.money import in_token
from svc.core.windows import window_words
from svc.records import (
    ENDED_BECAUSE,
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
from svc.verification import Vouched

_OPEN, _CLAIMED, _SETTLED = 0, 1, 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RATES: Final = frozenset({"rate in", "rate out"})
_LATELY: Final = ("settled", "median")  # of the last seven days


def models(listed: Iterable[Model]) -> Table:
    rows = [(model.id, str(model.svc.model_id), model.owned_by, _yes(model.svc.enabled)) for model in listed]
    return Table(("model", "id", "owned by", "enabled"), rows, frozenset({"id"}))


def asks(listed: Iterable[Ask], names: Mapping[int, str]) -> Table:
    rows = [
        (
            name_of(ask.model_id, names),
            window_words(ask.sla),
            str(ask.provider_id),
            str(ask.rate_in),
            str(ask.rate_out),
            *_reliability(ask.reliability),
        )
        for ask in listed
    ]
    return Table(
        ("model", "window", "provider", "rate in", "rate out", *_LATELY), rows, _RATES | {"provider", *_LATELY}
    )


def _reliability(lately: Reliability | None) -> tuple[str | None, str | None]:
    """Jobs settled of those that ended in the last days, and the median time that took; nothing of a newcomer."""
    if lately is None:
        return None, None
    ended = lately.settled + lately.failed + lately.reclaimed
    median = None if lately.median_secs is None else span(lately.median_secs)
    return f"{lately.settled}/{ended}" if ended else "new", median


def floors(listed: Iterable[Floor], names: Mapping[int, str]) -> Table:
    rows = [
        (name_of(floor.model_id, names), window_words(floor.sla), str(floor.rate_in), str(floor.rate_out))
        for floor in listed
    ]
    return Table(("model", "window", "rate in", "rate out"), rows, _RATES)


def providers(listed: Iterable[Provider], names: Mapping[int, str]) -> Table:
    rows = [
        (
            str(provider.provider_id),
            provider.operator,
            _yes(provider.listed),
            str(provider.reputation),
            f"{provider.active_jobs}/{provider.capacity}",
            "all" if provider.allow_all_models else ", ".join(name_of(each, names) for each in provider.allowed_models),
            _yes(provider.box_key is not None),
            *_reliability(provider.reliability),
        )
        for provider in listed
    ]
    columns = ("provider", "wallet", "listed", "reputation", "busy", "models", "can be sealed to", *_LATELY)
    return Table(columns, rows, frozenset({"provider", "reputation", "busy", *_LATELY}), frozenset({"wallet"}))


def jobs(listed: Iterable[BookRow], names: Mapping[int, str], now: float) -> Table:
    """`now`: by the coordinator's clock. What time is left is a provider's to settle, or anybody's to claim."""
    rows = [
        (
            row.job_id,
            name_of(row.model_id, names),
            status_of(row),
            _left(row, now),
            window_words(row.sla_secs),
            str(row.provider_id) if row.provider_id else None,
            str(row.rate_in),
            str(row.rate_out),
            f"{row.units_in}/{row.units_out}",
        )
        for row in listed
    ]
    columns = ("job", "model", "status", "left", "window", "provider", "rate in", "rate out", "units")
    return Table(columns, rows, _RATES | {"left", "provider", "units"}, frozenset({"job"}))


def batches(listed: Iterable[Batch]) -> Table:
    rows = [
        (
            batch.id,
            batch.endpoint,
            batch.completion_window,
            batch.status,
            *(str(count) for count in (counts.completed, counts.failed, counts.total)),
            moment(batch.created_at),
        )
        for batch in listed
        for counts in (batch.request_counts,)
    ]
    columns = ("batch", "endpoint", "window", "status", "completed", "failed", "total", "created")
    return Table(columns, rows, frozenset({"completed", "failed", "total"}), frozenset({"batch"}))


def plan(planned: Iterable[ModelPlan], names: Mapping[int, str]) -> Table:
    """One row per provider that takes lines; a last one per model for the lines that nobody takes."""
    rows: list[Sequence[str | None]] = []
    for each in planned:
        name = name_of(each.model_id, names)
        rows += [
            (name, str(share.provider_id), str(share.lines), str(share.rate_in), str(share.rate_out))
            for share in each.allocation
        ]
        left = each.lines - sum(share.lines for share in each.allocation)
        if left:
            rows.append((name, "nobody", str(left), None, None))
    return Table(("model", "provider", "lines", "rate in", "rate out"), rows, _RATES | {"provider", "lines"})


def live(candidates: Iterable[Candidate]) -> str:
    """Providers that could take an order now, each with its room.

    >>> live([])
    'nobody with room at these rates'
    """
    shown = [
        f"{each.provider_id}" if each.room is None else f"{each.provider_id} (room for {each.room})"
        for each in candidates
    ]
    return ", ".join(shown) or "nobody with room at these rates"


def why(told: Why) -> Table:
    rows = [
        (str(each.provider_id), _yes(each.takes), "; ".join(reason.said for reason in each.reasons) or None)
        for each in told.providers
    ]
    return Table(("provider", "takes it", "kept away because"), rows, frozenset({"provider"}))


def vouched(facts: Iterable[Vouched]) -> Table:
    rows = [(each.fact, each.value, each.voucher.value) for each in facts]
    return Table(("fact", "value", "vouched for by"), rows, whole=frozenset({"value"}))


def status_of(row: BookRow) -> str:
    """The client's word for a state of the book."""
    known = {_OPEN: "queued", _CLAIMED: "in_progress", _SETTLED: "completed"}
    return known.get(row.state) or ENDED_BECAUSE.get(row.ended_because, "ended")


def _left(row: BookRow, now: float) -> str | None:
    if row.state == _OPEN:
        return span(row.expires_at - now)
    return None if row.reclaimable_at is None else span(row.reclaimable_at - now)


_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """A length of time in its two largest units, rounded down; nothing is left of one that is over.

    >>> span(3725), span(59.9), span(-1)
    ('1 h 2 min', '59 s', '0 s')
    """
    left, parts = max(0, int(seconds)), list[str]()
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def name_of(model_id: int, names: Mapping[int, str]) -> str:
    return names.get(model_id, f"model {model_id}")


def moment(at: int | None) -> str | None:
    """Not by the system's calendar, which ends elsewhere on each platform."""
    if at is None:
        return None
    try:
        return (_EPOCH + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%SZ")
    except OverflowError:
        return str(at)


def token(amount: int, decimals: int, name: str) -> str:
    return f"{in_token(amount, decimals)} {name}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
