"""What can be bought, and from whom: models, asks, floors, providers, the escrow's allowlist."""

from urllib.parse import quote

import attrs

from svc.account import Account
from svc.records import AllowlistEntry, Ask, Floor, Model, Provider
from svc.wire.pages import paged

MOST: int = 100


@attrs.frozen
class Models:
    account: Account

    async def list(self, *, limit: int | None = MOST, offset: int = 0) -> list[Model]:
        return await paged(self.account.transport, "/v1/models", "data", Model, limit=limit, offset=offset)

    async def get(self, name: str) -> Model:
        """Raises NotFound, with code `model_not_found`."""
        return await self.account.transport.get(f"/v1/models/{quote(name)}", Model)


@attrs.frozen
class Market:
    account: Account

    async def asks(self, *, model: int | None = None, limit: int | None = MOST, offset: int = 0) -> list[Ask]:
        """Asks of listed providers; `model` is a numeric model id."""
        query = {"model": model}
        return await paged(self.account.transport, "/evm/asks", "asks", Ask, limit=limit, offset=offset, params=query)

    async def floors(
        self, *, model: int | None = None, sla: int | None = None, limit: int | None = MOST, offset: int = 0
    ) -> list[Floor]:
        """The lowest rates per model and window; the two rates of a row may be of two providers."""
        query = {"model": model, "sla": sla}
        return await paged(
            self.account.transport, "/evm/asks/floors", "floors", Floor, limit=limit, offset=offset, params=query
        )

    async def providers(self, *, limit: int | None = MOST, offset: int = 0) -> list[Provider]:
        return await paged(self.account.transport, "/evm/providers", "providers", Provider, limit=limit, offset=offset)

    async def provider(self, provider_id: int) -> Provider:
        return await self.account.transport.get(f"/evm/providers/{provider_id}", Provider)

    async def allowlist(self, *, limit: int | None = MOST, offset: int = 0) -> list[AllowlistEntry]:
        return await paged(
            self.account.transport, "/evm/allowlist", "entries", AllowlistEntry, limit=limit, offset=offset
        )
