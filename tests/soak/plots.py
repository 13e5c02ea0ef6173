"""Plots of a run: stacked on one time axis, with every fault marked."""

import io
from collections.abc import Iterable, Sequence
from typing import Final

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.soak.timeline import Timeline

_BIN: Final = 5.0  # seconds per point of throughput or latency
_QUANTILES: Final = (0.5, 0.95, 0.99)


def plot(timeline: Timeline) -> str:
    """Return an SVG element."""
    figure = Figure(figsize=(13, 14), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(6, 1, sharex=True, height_ratios=(2, 1, 1, 1, 1, 1.5))
    _throughput(axes[0], timeline)
    _latency(axes[1], timeline)
    for axis, series, title in (
        (axes[2], "queue", "relays waiting"),
        (axes[3], "lag", "index lag, blocks"),
        (axes[4], "memory", "resident memory, MiB"),
    ):
        _reading(axis, timeline, series, title)
    _faults(axes[5], timeline)
    for axis in axes[:5]:
        for span in timeline.faults:
            axis.axvspan(span.start, max(span.end, span.start + 0.2), color="tab:red", alpha=0.08, linewidth=0)
    axes[5].set_xlabel("seconds")
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def _throughput(axis: Axes, timeline: Timeline) -> None:
    axis.set_title("work done per second, by kind", loc="left", fontsize=9)
    axis.set_prop_cycle(color=colormaps["tab20"].colors)  # type: ignore[attr-defined] # a listed map has them
    for what in sorted({done.what for done in timeline.done}):
        counts = binned((done.at, 1.0) for done in timeline.done if done.what == what)
        axis.plot([at for at, _ in counts], [len(ones) / _BIN for _, ones in counts], label=what)
    _legend(axis)


def _latency(axis: Axes, timeline: Timeline) -> None:
    axis.set_title("seconds to a posted job (201), percentiles", loc="left", fontsize=9)
    bins = binned((done.at, done.seconds) for done in timeline.done if done.what == "post" and done.outcome == "ok")
    for part in _QUANTILES:
        axis.plot([at for at, _ in bins], [quantile(seconds, part) for _, seconds in bins], label=f"p{part * 100:g}")
    _legend(axis)


def _reading(axis: Axes, timeline: Timeline, series: str, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=9)
    for daemon in sorted({reading.daemon for reading in timeline.readings if series in reading.values}):
        points = [(r.at, r.values[series]) for r in timeline.readings if r.daemon == daemon and series in r.values]
        axis.plot([at for at, _ in points], [value for _, value in points], label=daemon)
    _legend(axis)


def _faults(axis: Axes, timeline: Timeline) -> None:
    axis.set_title("faults", loc="left", fontsize=9)
    kinds = sorted({span.kind for span in timeline.faults})
    for row, kind in enumerate(kinds):
        spans = [(s.start, max(s.end - s.start, 0.2)) for s in timeline.faults if s.kind == kind]
        axis.broken_barh(spans, (row - 0.4, 0.8), color="tab:red")
    axis.set_yticks(range(len(kinds)), kinds, fontsize=7)


def binned(points: Iterable[tuple[float, float]]) -> list[tuple[float, list[float]]]:
    """Return values by the middle of their bin. Empty bins are included, so that a standstill is visible."""
    bins: dict[int, list[float]] = {}
    for at, value in points:
        bins.setdefault(int(at // _BIN), []).append(value)
    if not bins:
        return []
    return [((n + 0.5) * _BIN, bins.get(n, [])) for n in range(max(bins) + 1)]


def quantile(values: Sequence[float], part: float) -> float:
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _legend(axis: Axes) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
