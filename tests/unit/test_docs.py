"""The check of the documentation site finds each kind of fault. The settings table marks required and secret
settings."""

from pathlib import Path

from docs.check import problems
from docs.generate import coordinator_settings


def site_with(folder: Path, body: str) -> Path:
    for name, text in {"index.html": body, "guide/index.html": '<h1 id="start">Guide</h1>'}.items():
        page = folder / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    return folder


def test_sound_site_has_no_problems(tmp_path: Path) -> None:
    body = '<a href="guide/#start">a</a> <a href="https://example.org">b</a> <img src="data:image/png;base64,">'
    assert problems(site_with(tmp_path, body), ["guide.md"], "  - guide.md\n") == []


def test_each_fault_is_found(tmp_path: Path) -> None:
    body = (
        '<a href="guide/#end">a</a> <a href="none/">b</a> <img src="none.png">'
        '<script src="https://example.org/x.js"></script> <link href="//example.org/x.css">'
    )
    assert problems(site_with(tmp_path, body), ["guide.md", "orphan.md"], "  - guide.md\n") == [
        "index.html: loads //example.org/x.css from another host",
        "index.html: loads https://example.org/x.js from another host",
        "index.html: broken link guide/#end",
        "index.html: broken link none.png",
        "index.html: broken link none/",
        "mkdocs.yml: nav lacks orphan.md",
    ]


def test_settings_table_marks_required_and_secret_settings() -> None:
    rows = {row.split("`")[1]: row for row in coordinator_settings().splitlines()[2:]}
    assert "| required | secret |" in rows["DATABASE_URL"]
    assert "| `8402` | 1..65535 |" in rows["PORT"]
