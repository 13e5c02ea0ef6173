import json
from pathlib import Path

import attrs
import pytest

from tests.bench.chart import draw, margin
from tests.bench.history import Run, keep, runs_of, trend
from tests.bench.row import Row, table

FASTER = Row.of("reads", [890, 900, 910], "reads/s", "hello", 1000, target=0.85)
SLOWER = Row.of("reads", [490, 500, 510], "reads/s", "hello", 1000, target=0.85)
SMALL = Row.of("memory", [70, 75, 80], "MiB", "150 MiB", 150, at_most=1)
LARGE = Row.of("memory", [290, 300, 310], "MiB", "150 MiB", 150, at_most=1)


def test_runs_are_read_back_and_half_lines_skipped(tmp_path: Path) -> None:
    latest, history = tmp_path / "build" / "bench.json", tmp_path / "build" / "history.jsonl"
    first, second = Run(1.0, "aaa", (SLOWER,)), Run(2.0, "bbb+", (FASTER, SMALL), 60)
    keep(first, latest, history)
    with history.open("a") as file:
        file.write('{"measured_at": 1.5, "commi\n')
    keep(second, latest, history)
    assert runs_of(history) == [first, second]
    assert '"bbb+"' in latest.read_text()


def test_rows_of_earlier_releases_may_have_more_fields(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    old = attrs.asdict(FASTER) | {"absolute": None, "limit": 0, "most": False}
    history.write_text(json.dumps({"measured_at": 1.0, "commit": "aaa", "rows": [old], "measured": []}) + "\n")
    assert runs_of(history) == [Run(1.0, "aaa", (FASTER,))]


def test_table_shows_n_and_quartiles_of_each_row() -> None:
    head, *lines = table([FASTER, LARGE]).splitlines()
    assert [name in head for name in ("quartiles", " n ")] == [True, True]
    assert [line.split()[3:6] for line in lines] == [["0.9", "0.895–0.905", "3"], ["2", "1.97–2.03", "3"]]


def test_nothing_was_measured_before_the_first_run(tmp_path: Path) -> None:
    assert runs_of(tmp_path / "history.jsonl") == []


@pytest.mark.parametrize("row", [FASTER, SLOWER, SMALL, LARGE], ids=["faster", "slower", "small", "large"])
def test_margin_is_at_least_one_exactly_where_the_target_holds(row: Row) -> None:
    assert (margin(row) >= 1) == row.holds


def test_chart_names_every_figure_once_with_its_latest_value(tmp_path: Path) -> None:
    draw([Run(1.0, "", (SLOWER, LARGE)), Run(2.0, "", (FASTER,))], tmp_path / "bench.svg")
    drawn = (tmp_path / "bench.svg").read_text()
    assert [drawn.count(f"<!-- {text} -->") for text in ("reads — hello", "memory — 150 MiB")] == [1, 1]
    assert "<!-- 0.90 (target 0.85) -->" in drawn
    assert "<!-- 0.50 (target 0.85) -->" not in drawn


def test_trend_shows_ratios_in_order_and_the_turning_point() -> None:
    def run(at: float, ratio: float) -> Run:
        row = Row.of("reads", [ratio] * 3, "reads/s", f"hello (× {ratio})", 1, target=0.5)
        return Run(at, "abc", (row,) if at else (SMALL,), 60)

    runs = [run(0, 1.0), run(1, 0.8), run(2, 1.0), run(3, 1.2), run(4, 0.75)]
    head, *lines = trend(runs).splitlines()
    assert head == "history: the run of 1970-01-01 00:00 (abc, 60 s) after 4 others, ratios"
    assert [line.split() for line in lines] == [["0.80", "1.00", "1.20", "0.75", "-25", "%", "reads", "—", "hello"]]
    assert trend(runs[:1]).splitlines()[1].split() == ["0.50", "new", "memory", "—", "150", "MiB"]
    assert trend([]) == "no run is kept yet"
