"""Write the tables that pages of the site include: `python -m docs.generate FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Final

from common.settings.reader import settings_of
from coordinatord.run.config import Config, setting_rows
from docs.http_reference import http_reference

ROOT: Final = Path(__file__).parents[1]


def coordinator_settings() -> str:
    lines = ["| setting | default | values | meaning |\n|---|---|---|---|\n"]
    for setting, row in zip(settings_of(Config), setting_rows({}), strict=True):
        default = "required" if setting.required else "" if row.default is None else f"`{row.default}`"
        values = ", ".join(part for part in (row.range, "secret" if setting.secret else "") if part)
        lines.append(f"| `{row.name}` | {default} | {values} | {row.meaning} |\n")
    return "".join(lines)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads((ROOT / "common" / "openapi.json").read_text("utf-8"))
    (folder / "http.md").write_text(http_reference(document), "utf-8")
    (folder / "coordinatord-settings.md").write_text(coordinator_settings(), "utf-8")


if __name__ == "__main__":
    main()
