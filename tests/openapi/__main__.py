"""Write common/openapi.json and the contract errors of docs/protocol/contracts.md from the routes: `make openapi`.

A test compares both with the routes.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from coordinatord.api.batches.routes import BatchRoutes
from coordinatord.api.book.model_routes import ModelRoutes
from coordinatord.api.book.provider_routes import ProviderRoutes
from coordinatord.api.book.routes import BookRoutes
from coordinatord.api.escrow.routes import EscrowRoutes
from coordinatord.api.events.routes import EventRoutes
from coordinatord.api.files.routes import FileRoutes
from coordinatord.api.orders.routes import OrderRoutes
from coordinatord.api.pages.routes import HistoryRoutes, PageRoutes
from coordinatord.api.provider_ops.routes import OperationRoutes
from coordinatord.api.sessions.routes import SessionRoutes
from coordinatord.api.system.routes import SystemRoutes
from coordinatord.api.webhooks.routes import WebhookRoutes
from coordinatord.http.openapi import describe
from coordinatord.http.routing import Route
from coordinatord.run.application import Endpoints
from docs.http_reference import contract_errors

COMMON: Final = Path(__file__).parents[2] / "common"
CONTRACTS_PAGE: Final = COMMON.parent / "docs" / "protocol" / "contracts.md"
_TABLE: Final = re.compile(r"(## Contract errors\n.*?\n\n)(\| error .*?\n)(\n## |\Z)", re.DOTALL)


def declared() -> list[Route]:
    """Every route over no services at all: what routes declare asks for none."""
    absent: Any = None
    endpoints = Endpoints(
        system=SystemRoutes(absent, absent, absent),
        handshake=SessionRoutes(absent, 0),
        models=ModelRoutes(absent),
        jobs=OrderRoutes(absent, absent, absent, absent, absent, absent),
        files=FileRoutes(absent),
        book=BookRoutes(absent, absent, absent, absent),
        operations=OperationRoutes(absent, absent, absent, absent, absent),
        providers=ProviderRoutes(absent),
        escrow=EscrowRoutes(None),
        batches=BatchRoutes(absent, absent, absent),
        events=EventRoutes(absent, absent, absent, absent, absent),
        webhooks=WebhookRoutes(None),
        history=HistoryRoutes(absent, absent),
        page=PageRoutes(enabled=False),
    )
    return [route for route in endpoints.routes() if route.path != "/openapi.json"]


def pages() -> dict[Path, str]:
    """The texts that the committed files must have."""
    document = json.loads(json.dumps(describe(declared())))
    contracts = CONTRACTS_PAGE.read_text("utf-8")
    table = contract_errors(document)
    return {
        COMMON / "openapi.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        CONTRACTS_PAGE: _TABLE.sub(lambda found: f"{found[1]}{table}{found[3]}", contracts),
    }


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
