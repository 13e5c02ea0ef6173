"""Write a run's reports for readers and for programs: soak.html and soak.json."""

import json
from html import escape
from pathlib import Path
from typing import Any, Final

from tests.soak.resources import GROWS
from tests.soak.verdict import INVARIANTS

_MAX_COLUMNS: Final = 12
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Soak, seed {seed}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }}
.holds {{ color: #060; }} .broken {{ color: #b00; font-weight: bold; }}
</style></head><body>
<h1>Soak: {verdict}</h1>
<p>Seed {seed}, {minutes:g} minutes, round {done} of {rounds}, {coordinators} coordinators, {providers} providers,
{jobs} jobs promised.</p>
<h2>Invariants</h2><table>{invariants}</table>
<h2>Resources at rest</h2>{resources}
<h2>At risk</h2><ul>{risks}</ul>
<h2>Faults</h2><table>{faults}</table>
<h2>What clients met</h2><table>{outcomes}</table>
</body></html>
"""


def write(folder: Path, summary: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.json").write_text(json.dumps(summary, indent=2) + "\n")
    (folder / "soak.html").write_text(_page(summary))


def _page(summary: dict[str, Any]) -> str:
    judged = summary["invariants"]
    held = all(one["holds"] for one in judged.values())
    rows = (
        f"<tr><td>{name} {escape(INVARIANTS.get(name, ''))}</td>"
        f'<td class="{"holds" if one["holds"] else "broken"}">{"holds" if one["holds"] else "broken"}</td>'
        f"<td>{escape(one['detail'])}</td></tr>"
        for name, one in judged.items()
    )
    return _PAGE.format(
        seed=summary["seed"],
        minutes=summary["minutes"],
        coordinators=summary["coordinators"],
        providers=summary["providers"],
        jobs=summary["jobs"],
        done=summary["rounds"][0],
        rounds=summary["rounds"][1],
        resources=_resources(summary["looks"]),
        verdict="everything held" if held else "broken",
        invariants="".join(rows),
        risks="".join(f"<li>{escape(risk)}</li>" for risk in summary["risks"]),
        faults="".join(
            f"<tr><td>{escape(kind)}</td><td>{count}</td></tr>" for kind, count in summary["faults"].items()
        ),
        outcomes="".join(
            f"<tr><td>{escape(what)}</td><td>{escape(', '.join(f'{o}: {n}' for o, n in counts.items()))}</td></tr>"
            for what, counts in summary["outcomes"].items()
        ),
    )


def _resources(looks: list[dict[str, Any]]) -> str:
    """Return tables with a column for the start, some rounds and the end."""
    step = max(1, (len(looks) - 2) // (_MAX_COLUMNS - 2) + 1)
    shown = [*looks[:1], *looks[1:-1:step], *looks[-1:]] if len(looks) > 1 else looks
    head = "".join(f"<th>{one['at'] / 60:.0f} min</th>" for one in shown)
    processes = {name for one in shown for name in one["processes"]}
    rows = [f"<tr><th>process: MiB, descriptors, age in minutes</th>{head}<th>may grow because</th></tr>"]
    for name in sorted(processes):
        uses = [one["processes"].get(name) for one in shown]
        cells = [
            f"{use['memory_mib']:.0f}, {use['descriptors']}, {use['age_s'] / 60:.0f}" if use else "" for use in uses
        ]
        rows.append(_row(name, cells))
    rows.append(f"<tr><th>table: rows, MiB</th>{head}<th></th></tr>")
    for name in sorted(shown[-1]["tables"] if shown else ()):
        sizes = [one["tables"].get(name) for one in shown]
        cells = [f"{size['rows']:,}, {size['bytes'] / (1 << 20):.1f}" if size else "" for size in sizes]
        rows.append(_row(name, cells))
    rows.append(_row("files of the pin store, MiB", [f"{one['stored_mib']:.0f}" for one in shown]))
    return f"<table>{''.join(rows)}</table>"


def _row(name: str, cells: list[str]) -> str:
    told = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr><td>{escape(name)}</td>{told}<td>{escape(GROWS.get(name, ''))}</td></tr>"
