"""Write the tables that pages of the site include: `python -m docs.generate FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Final

from coordinatord.run.config import variables
from coordinatord.run.environment import REQUIRED
from docs.http_reference import http_reference

ROOT: Final = Path(__file__).parents[1]


def coordinator_settings() -> str:
    """Render a table of the variables that coordinatord reads."""
    rows = ["| variable | default | values | meaning |\n|---|---|---|---|\n"]
    for field in variables():
        declared = field.metadata
        values = declared["read"].__doc__ if declared["read"].__name__ == "read" else ""
        rows.append(
            f"| `{declared['variable']}` | {_default(declared['default'])} | {values} | {declared['about']} |\n"
        )
    return "".join(rows)


def _default(default: object) -> str:
    if default is REQUIRED:
        return "required"
    return f"`{default}`" if isinstance(default, int | str) and default != "" else ""


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads((ROOT / "common" / "openapi.json").read_text("utf-8"))
    (folder / "http.md").write_text(http_reference(document), "utf-8")
    (folder / "coordinatord-settings.md").write_text(coordinator_settings(), "utf-8")


if __name__ == "__main__":
    main()
