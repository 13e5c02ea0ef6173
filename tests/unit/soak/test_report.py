import json
import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.soak import report
from tests.soak.plots import plot
from tests.soak.resources import Look, ProcessUse, TableSize
from tests.soak.timeline import Done, Span, Timeline
from tests.soak.verdict import INVARIANTS, judged


def course() -> Timeline:
    timeline = Timeline(began=time.monotonic() - 10)
    for span in (Span("reorg", 1.0, 1.0), Span("rpc_hang", 3.0, 7.0), Span("reorg", 9.0, 9.0)):
        timeline.struck(span)
    for n in range(10):
        timeline.add(Done("post", 1.0 + n, 0.5 + n / 10, "ok"))
    timeline.add(Done("quote", 2.0, 0.1, "<b>bold</b>"))
    timeline.read("coordinator-0", {"queue": 3, "lag": 0, "memory": 100.0, "descriptors": 40})
    return timeline


def looks() -> list[dict[str, Any]]:
    use, jobs = ProcessUse(100.0, 40, 600.0), TableSize(1_234, 5 << 20)
    return [Look(60.0 * n, {"coordinator-0": use}, {"jobs": jobs}, 7.0).as_json() for n in range(30)]


def summary(timeline: Timeline, *found: str) -> dict[str, Any]:
    told = {"seed": 1, "minutes": 0.2, "coordinators": 2, "providers": 2, "jobs": 10, "risks": ["I9: 3 <leases>"]}
    return {**told, "rounds": [1, 3], "looks": looks(), **timeline.as_json(), "invariants": judged(found)}


def test_invariants_hold_unless_a_line_says_otherwise() -> None:
    verdict = judged(["I2: twice", "I2: thrice", "a daemon died"])
    assert [name for name in INVARIANTS if not verdict[name]["holds"]] == ["I2"]
    assert verdict["I2"]["detail"] == "I2: twice; I2: thrice"
    assert verdict["other"] == {"holds": False, "detail": "a daemon died"}
    assert all(one["holds"] for one in judged([]).values())


def test_faults_and_outcomes_are_counted_by_kind() -> None:
    told = course().as_json()
    assert told["faults"] == {"reorg": 2, "rpc_hang": 1}
    assert told["outcomes"]["post"] == {"ok": 10}


def test_report_is_json_and_a_self_contained_page(tmp_path: Path) -> None:
    timeline = course()
    report.write(tmp_path, summary(timeline, "I3: <gap>"), timeline)
    told = json.loads((tmp_path / "soak.json").read_text())
    assert told["invariants"]["I3"] == {"holds": False, "detail": "I3: <gap>"}
    page = (tmp_path / "soak.html").read_text()
    assert "Soak: broken" in page
    assert "I3: &lt;gap&gt;" in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "I9: 3 &lt;leases&gt;" in page
    assert "round 1 of 3" in page
    assert "100, 40, 10" in page
    assert "1,234, 5.0" in page
    assert page.count("<th>29 min</th>") == 2
    assert page.count("<th>0 min</th>") == 2
    assert "<b>" not in page
    assert not re.search(r'(src|href)="(?!#)', page.split("<svg", 1)[0])


def test_page_of_a_run_that_held_says_so(tmp_path: Path) -> None:
    report.write(tmp_path, summary(course()), course())
    assert "Soak: everything held" in (tmp_path / "soak.html").read_text()


def test_plot_has_a_panel_per_figure_and_names_faults() -> None:
    drawn = plot(course())
    ElementTree.fromstring(drawn)  # noqa: S314 - our own text
    for comment in ("work done per second", "longest", "relays waiting", "index lag", "resident memory", "reorg"):
        assert comment in drawn


def test_run_without_anything_is_drawn_too() -> None:
    assert plot(Timeline()).startswith("<svg")
