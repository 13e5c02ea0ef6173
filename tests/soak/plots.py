"""Plots of a run: stacked on one time axis."""

import io
from collections.abc import Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.soak.course import Course
from tests.soak.timeline import Timeline


def plot(timeline: Timeline) -> str:
    """Return an SVG element."""
    figure = Figure(figsize=(13, 16), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(7, 1, sharex=True, height_ratios=(2, 1, 1, 1, 1, 1, 1.5))
    _throughput(axes[0], timeline)
    _latency(axes[1], timeline)
    for axis, series, title in (
        (axes[2], "queue", "relays waiting"),
        (axes[3], "lag", "index lag, blocks"),
        (axes[4], "memory", "resident memory, MiB"),
        (axes[5], "descriptors", "descriptors"),
    ):
        _figure(axis, timeline, series, title)
    _faults(axes[6], timeline)
    axes[6].set_xlabel("seconds")
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def _throughput(axis: Axes, timeline: Timeline) -> None:
    axis.set_title("work done per second, by kind", loc="left", fontsize=9)
    axis.set_prop_cycle(color=colormaps["tab20"].colors)  # type: ignore[attr-defined] # a listed map has them
    for what, course in _of(timeline, "seconds"):
        axis.plot(*zip(*course.rates, strict=True), label=what)
    _legend(axis)


def _latency(axis: Axes, timeline: Timeline) -> None:
    axis.set_title("seconds to a posted job (201), mean and longest", loc="left", fontsize=9)
    for what, course in _of(timeline, "seconds"):
        if what == "post":
            axis.plot(*zip(*course.means, strict=True), label="mean")
            axis.plot(*zip(*course.peaks, strict=True), label="longest")
    _legend(axis)


def _figure(axis: Axes, timeline: Timeline, figure: str, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=9)
    for name, course in _of(timeline, figure):
        axis.plot(*zip(*course.means, strict=True), label=name)
    _legend(axis)


def _faults(axis: Axes, timeline: Timeline) -> None:
    axis.set_title("faults", loc="left", fontsize=9)
    courses = _of(timeline, "fault")
    for row, (_, course) in enumerate(courses):
        spans = [(at - course.seconds / 2, max(length, course.seconds)) for at, length in course.means]
        axis.broken_barh(spans, (row - 0.4, 0.8), color="tab:red")
    axis.set_yticks(range(len(courses)), [kind for kind, _ in courses], fontsize=7)


def _of(timeline: Timeline, figure: str) -> list[tuple[str, Course]]:
    return [(of, course) for (name, of), course in sorted(timeline.courses.items()) if name == figure]


def _legend(axis: Axes) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
