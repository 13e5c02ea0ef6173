"""Read the market: models, asks, lowest rates, providers, windows and the escrow's allowlist."""

from typing import Final
from urllib.parse import quote

import attrs

from svc.account import Account
from svc.chain import facts
from svc.core.windows import USUAL_WINDOWS, Windows, window_seconds
from svc.error_conversion import raises_svc_errors
from svc.records import AllowlistEntry, Ask, Floor, Model, Provider
from svc.wire.pages import read_pages

_DEFAULT_LIMIT: Final = 100
ModelList = list[Model]  # inside the class, `list` is the method


@raises_svc_errors
@attrs.frozen
class Models:
    """Reads the market's models."""

    account: Account

    async def list(self, *, limit: int | None = _DEFAULT_LIMIT, offset: int = 0) -> ModelList:
        return await read_pages(self.account.transport, "/v1/models", "data", Model, limit=limit, offset=offset)

    async def get(self, name: str) -> Model:
        """Return a model. Raises NotFound with code `model_not_found`."""
        return await self.account.transport.get(f"/v1/models/{quote(name)}", Model)


@raises_svc_errors
@attrs.frozen
class Market:
    """Reads asks, providers, windows and the allowlist."""

    account: Account

    async def asks(self, *, model: int | None = None, limit: int | None = _DEFAULT_LIMIT, offset: int = 0) -> list[Ask]:
        """Return asks of listed providers. `model` is a numeric model id."""
        query = {"model": model}
        return await read_pages(
            self.account.transport, "/evm/asks", "asks", Ask, limit=limit, offset=offset, params=query
        )

    async def floors(
        self, *, model: int | None = None, sla: int | None = None, limit: int | None = _DEFAULT_LIMIT, offset: int = 0
    ) -> list[Floor]:
        """Return the lowest rates per model and window. The two rates of a row may come from different providers."""
        query = {"model": model, "sla": sla}
        return await read_pages(
            self.account.transport, "/evm/asks/floors", "floors", Floor, limit=limit, offset=offset, params=query
        )

    async def windows(self, window: str) -> Windows:
        """Return the windows that an order may use.

        With a node, check `window`, the usual windows and the windows with asks on the chain. Without a node, return
        the coordinator's list. If the coordinator reports none, return the windows with asks, which may be incomplete.
        """
        market, node = await self.account.market(), self.account.market_verifier.chain
        if node is None and (reported := await self.account.reported_windows(window_seconds(window))) is not None:
            return Windows(tuple(sorted(reported)), complete=True)
        priced = {floor.sla for floor in await self.floors(limit=None)}
        if node is None:
            return Windows(tuple(sorted(priced)), complete=False)
        chain, candidates = node.new_snapshot(), sorted(priced | USUAL_WINDOWS | {window_seconds(window)})
        allowed = [
            seconds for seconds in candidates if await facts.is_window_allowed(chain, market.job_registry, seconds)
        ]
        return Windows(tuple(allowed), complete=True)

    async def providers(self, *, limit: int | None = _DEFAULT_LIMIT, offset: int = 0) -> list[Provider]:
        return await read_pages(
            self.account.transport, "/evm/providers", "providers", Provider, limit=limit, offset=offset
        )

    async def provider(self, provider_id: int) -> Provider:
        return await self.account.transport.get(f"/evm/providers/{provider_id}", Provider)

    async def allowlist(self, *, limit: int | None = _DEFAULT_LIMIT, offset: int = 0) -> list[AllowlistEntry]:
        return await read_pages(
            self.account.transport, "/evm/allowlist", "entries", AllowlistEntry, limit=limit, offset=offset
        )
