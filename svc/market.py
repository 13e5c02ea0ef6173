"""Market: models, asks, floors, providers, and the escrow's allowlist."""

from urllib.parse import quote

import attrs

from svc.account import Account
from svc.chain import facts
from svc.core.windows import USUAL_WINDOWS, Windows, window_seconds
from svc.error_conversion import raises_svc_errors
from svc.records import AllowlistEntry, Ask, Floor, Model, Provider
from svc.wire.pages import paged

MOST: int = 100
ModelList = list[Model]  # in the class, `list` is the method: Python 3.14 looks annotations up there


@raises_svc_errors
@attrs.frozen
class Models:
    account: Account

    async def list(self, *, limit: int | None = MOST, offset: int = 0) -> ModelList:
        return await paged(self.account.transport, "/v1/models", "data", Model, limit=limit, offset=offset)

    async def get(self, name: str) -> Model:
        """Raises NotFound, with code `model_not_found`."""
        return await self.account.transport.get(f"/v1/models/{quote(name)}", Model)


@raises_svc_errors
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

    async def windows(self, window: str) -> Windows:
        """Windows that orders may have, as far as can be told, about `window` too: by the chain where there is a node,
        else by the coordinator; by the market's asks where that does not say."""
        market, node = await self.account.market(), self.account.vouching.chain
        if node is None and (told := await self.account.told_windows(window_seconds(window))) is not None:
            return Windows(tuple(sorted(told)), certain=True)
        asked = {floor.sla for floor in await self.floors(limit=None)}
        if node is None:
            return Windows(tuple(sorted(asked)), certain=False)
        chain, candidates = node.later(), sorted(asked | USUAL_WINDOWS | {window_seconds(window)})
        taken = [each for each in candidates if await facts.window_allowed(chain, market.job_registry, each)]
        return Windows(tuple(taken), certain=True)

    async def providers(self, *, limit: int | None = MOST, offset: int = 0) -> list[Provider]:
        return await paged(self.account.transport, "/evm/providers", "providers", Provider, limit=limit, offset=offset)

    async def provider(self, provider_id: int) -> Provider:
        return await self.account.transport.get(f"/evm/providers/{provider_id}", Provider)

    async def allowlist(self, *, limit: int | None = MOST, offset: int = 0) -> list[AllowlistEntry]:
        return await paged(
            self.account.transport, "/evm/allowlist", "entries", AllowlistEntry, limit=limit, offset=offset
        )
