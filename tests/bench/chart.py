"""Chart of the figures: their distance from the target, now and in earlier runs."""

from pathlib import Path

from matplotlib.figure import Figure

from tests.bench.history import Run, same
from tests.bench.row import Row


def margin(row: Row) -> float:
    """Return the ratio over its target. It is 1 or more if the target holds, also for upper limits."""
    return row.ratio / row.target if (row.ratio >= row.target) == row.holds else row.target / max(row.ratio, 1e-9)


def draw(runs: list[Run], out: Path) -> None:
    """Draw the latest value of each figure, in table order, with earlier ones in grey."""
    points: dict[tuple[str, str], list[Row]] = {}
    for run in runs:
        for row in run.rows:
            points.setdefault(same(row), []).append(row)
    figure = Figure(figsize=(12, 1.5 + 0.32 * len(points)), layout="constrained")
    axis = figure.subplots()
    axis.axvline(1.0, color="black", linewidth=1)
    for at, rows in enumerate(points.values()):
        latest = rows[-1]
        axis.plot([margin(row) for row in rows[:-1]], [at] * (len(rows) - 1), "o", color="lightgrey", markersize=4)
        axis.plot(margin(latest), at, "o", color="tab:green" if latest.holds else "tab:red")
        label = f"{latest.ratio:.2f} (target {latest.target:g})"
        axis.annotate(label, (margin(latest), at), xytext=(8, -3), textcoords="offset points", fontsize=7)
    axis.set_yticks(range(len(points)), [f"{name} — {against}" for name, against in points], fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("measured over target; right of the line the target holds")
    axis.grid(axis="x", which="both", alpha=0.2)
    figure.savefig(out, format="svg")
