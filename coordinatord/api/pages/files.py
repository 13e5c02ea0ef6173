"""Static files of the market's page and of the operators' page."""

from collections.abc import Mapping
from typing import Final

from common.web.files import StaticFile, page_files

_PACKAGE: Final = "coordinatord.api.pages"


def market_page_files() -> dict[str, StaticFile]:
    """Return the files of the public page, by name."""
    return page_files(_PACKAGE, "static")


def operators_page_files() -> Mapping[str, StaticFile]:
    """Return the files of the page on the metrics port, by path."""
    files = {f"/{name}": file for name, file in page_files(_PACKAGE, "operators").items()}
    files["/"] = files.pop("/operators.html")
    return files
