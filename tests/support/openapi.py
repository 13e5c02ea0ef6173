"""Write common/openapi.json from the routes: `make openapi`. A test compares it with the routes."""

import json
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
from coordinatord.api.pages.routes import PageDataRoutes, PageRoutes
from coordinatord.api.provider_ops.routes import ProviderOpRoutes
from coordinatord.api.sessions.routes import SessionRoutes
from coordinatord.api.system.routes import SystemRoutes
from coordinatord.api.tabs.routes import TabRoutes
from coordinatord.api.webhooks.routes import WebhookRoutes
from coordinatord.http.openapi import build_openapi_document
from coordinatord.http.routing import Route
from coordinatord.run.application import RouteGroups

OPENAPI: Final = Path(__file__).parents[2] / "common" / "openapi.json"


def declared() -> list[Route]:
    """Return every route. Declaring routes requires no services."""
    absent: Any = None
    groups = RouteGroups(
        system=SystemRoutes(absent, absent, absent),
        sessions=SessionRoutes(absent, 0),
        models=ModelRoutes(absent),
        jobs=OrderRoutes(absent, absent, absent, absent, absent, absent),
        files=FileRoutes(absent),
        book=BookRoutes(absent, absent, absent, absent),
        operations=ProviderOpRoutes(absent, absent, absent, absent, absent),
        providers=ProviderRoutes(absent),
        escrow=EscrowRoutes(None),
        batches=BatchRoutes(absent, absent, absent),
        events=EventRoutes(absent, absent, absent, absent, absent),
        tabs=TabRoutes(absent, absent),
        webhooks=WebhookRoutes(None),
        page_data=PageDataRoutes(absent, absent, liveness_ms=0),
        pages=PageRoutes(enabled=False),
    )
    return [route for route in groups.routes() if route.path != "/openapi.json"]


def document() -> str:
    """Return the expected text of the committed file."""
    return json.dumps(json.loads(json.dumps(build_openapi_document(declared()))), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    OPENAPI.write_text(document(), "utf-8")


if __name__ == "__main__":
    main()
