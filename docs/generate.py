"""Write the tables that pages of the site include: `python -m docs.generate FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Final

from common.settings.listing import Row
from coordinatord.run.config import setting_rows
from docs.http_reference import http_reference

ROOT: Final = Path(__file__).parents[1]


def settings_table(rows: list[Row]) -> str:
    """Render settings as a table. Required settings have no default."""
    lines = ["| setting | default | values | meaning |\n|---|---|---|---|\n"]
    for row in rows:
        default = "" if row.default is None else f"`{row.default}`"
        lines.append(f"| `{row.name}` | {default} | {row.range} | {row.meaning} |\n")
    return "".join(lines)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads((ROOT / "common" / "openapi.json").read_text("utf-8"))
    (folder / "http.md").write_text(http_reference(document), "utf-8")
    (folder / "coordinatord-settings.md").write_text(settings_table(setting_rows({})), "utf-8")


if __name__ == "__main__":
    main()
