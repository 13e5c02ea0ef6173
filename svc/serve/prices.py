"""Facts of the market, kept warm: models by the names that programs use, who sells them at what price, the charges.

All of it is asked for ahead of its use, as long as it is used, so that a request waits for nothing but its own post. A
price that has changed meanwhile comes with the answer to the post, and is learned from it.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

import anyio
import attrs

from common.box import PublicKey
from common.quotes import FeeTerms
from svc.client import Client
from svc.core.bids import OPEN, Bid, Rates, read_rates
from svc.core.orders import PreparedOrder
from svc.core.quote_check import computed_quote, fee_terms
from svc.errors import NoProvider, SvcError
from svc.records import Candidate, Model, Quoted
from svc.serve.load import ProviderLoad
from svc.serve.problems import no_such_model
from svc.serve.settings import Rule, ServeSettings

_MOST_LOOKED_AT: Final = 8  # of the cheapest providers, whose room is looked at
CANDIDATE_SECONDS: Final = 5.0  # a provider is a candidate for 15 s after its last poll
MODEL_SECONDS: Final = 60.0
_NOBODY_SECONDS: Final = 1.0  # before it is asked again who sells what nobody sold
_LOOKED_SECONDS: Final = 60.0  # how long after its last use the room of a model's providers is looked at
_USED_SECONDS: Final = 600.0  # how long what was asked for is kept warm
_MOST_MODELS: Final = 1000


@attrs.frozen(slots=True)
class MarketOffer:
    """What is bid for a job and to whom it is sealed. `provider` is 0 for an open order. It counts as a job of that
    provider until `ProviderLoad.ended`."""

    bid: Bid
    recipient: PublicKey = attrs.field(repr=False)

    @property
    def provider(self) -> int:
        return self.bid.designated


@attrs.define
class _KeptCandidates:
    candidates: tuple[Candidate, ...]
    read_at: float
    used_at: float
    ask: Callable[[], Awaitable[tuple[Candidate, ...]]]


@attrs.define(eq=False)
class Prices:
    """`monotonic` times what is kept, so that tests need not wait."""

    client: Client
    settings: ServeSettings
    monotonic: Callable[[], float] = anyio.current_time
    load: ProviderLoad = attrs.field(init=False)
    _charges: FeeTerms | None = None
    _models: dict[str, Model] = attrs.field(factory=dict)
    _models_at: float = float("-inf")
    _listing: anyio.Lock = attrs.field(factory=anyio.Lock)
    _kept: dict[tuple[str, str], _KeptCandidates] = attrs.field(factory=dict)
    _box_keys: dict[int, PublicKey] = attrs.field(factory=dict)
    _asking: dict[tuple[str, str], anyio.Lock] = attrs.field(factory=dict)
    _quoting: anyio.Lock = attrs.field(factory=anyio.Lock)

    def __attrs_post_init__(self) -> None:
        buying = self.settings.buying
        self.load = ProviderLoad(buying.premium, buying.claim_seconds, buying.exclude_seconds, self.monotonic)

    # --- models -----------------------------------------------------------------------------------------------

    async def models(self) -> dict[str, Model]:
        """Those that may be asked for, by the name that a program uses."""
        known = await self._market_models()
        named = {name: each.model or name for name, each in self.settings.models.items()}
        names = {} if self.settings.only_named else {name: name for name in known}
        return {name: known[model] for name, model in {**names, **named}.items() if model in known}

    async def find(self, name: str, allowed: Collection[str]) -> tuple[Model, Rule]:
        """Raises Problem (`model_not_found`) also for one that the caller's key may not ask for."""
        if allowed and name not in allowed:
            raise no_such_model(name, "may not be asked for with this key")
        own = self.settings.models.get(name)
        if own is None and self.settings.only_named:
            raise no_such_model(name, "is none of those that svc serve is set to offer")
        wanted = name if own is None or own.model is None else own.model
        model = (await self._market_models()).get(wanted)
        if model is None:
            raise no_such_model(name, "does not exist or takes no orders: GET /v1/models lists what does")
        checked = await self.client.orders.account.model(wanted)  # held against the chain, where there is a node
        return checked, self.settings.rule(name)

    async def _market_models(self) -> dict[str, Model]:
        async with self._listing:
            if self.monotonic() - self._models_at > MODEL_SECONDS:
                await self._list()
            return self._models

    async def _list(self) -> None:
        listed = await self.client.models.list(limit=_MOST_MODELS)
        self._models = {model.id: model for model in listed if model.svc.enabled}
        self._models_at = self.monotonic()

    # --- offers -----------------------------------------------------------------------------------------------

    async def offer(self, model: Model, rule: Rule, tried: Collection[int]) -> MarketOffer:
        """The best that was not tried; one that failed somebody lately only where there is no other. Raises
        NoProvider."""
        if rule.is_open:
            if OPEN in tried:
                raise NoProvider(f"nobody claimed the open order for {model.id}")
            return await self._chosen(Bid(self._rates(rule), OPEN))
        bids = self._own_bids(rule) if rule.bids else await self._market_bids(model, rule)
        left = [bid for bid in bids if bid.designated not in tried]
        if not left:
            whom = f"none of the providers {', '.join(map(str, rule.providers))}" if rule.providers else "no provider"
            more = "; each was tried" if tried else ""
            raise NoProvider(f"{whom} is live for {model.id} in a window of {rule.window}{more}")
        return await self._chosen(self.load.order(left)[0])

    async def _chosen(self, bid: Bid) -> MarketOffer:
        self.load.chosen(bid.designated)  # at once: whoever chooses next must see it
        try:
            return MarketOffer(bid, await self._recipient(bid))
        except BaseException:
            self.load.ended(bid.designated, claimed=False)
            raise

    def others(self, model: Model, rule: Rule, tried: Collection[int]) -> list[int]:
        """Who else would take it, by what is known without asking."""
        if rule.is_open:
            return []
        if rule.bids:
            return [provider for provider in rule.providers if provider not in tried]
        kept = self._kept.get((model.id, rule.window))
        known = () if kept is None else self._suiting(kept.candidates, rule)
        return [candidate.provider_id for candidate in known if candidate.provider_id not in tried]

    def _own_bids(self, rule: Rule) -> list[Bid]:
        return [Bid(self._rates(rule), provider) for provider in rule.providers]

    def _rates(self, rule: Rule) -> Rates:
        return read_rates(rule.rate_in, rule.rate_out) or Rates(0, 0)

    async def _market_bids(self, model: Model, rule: Rule) -> list[Bid]:
        found = self._suiting(await self._candidates(model, rule), rule)
        return [Bid(Rates(one.rate_in, one.rate_out), one.provider_id, one.box_key) for one in found]

    def _suiting(self, candidates: Collection[Candidate], rule: Rule) -> list[Candidate]:
        return [one for one in candidates if not rule.providers or one.provider_id in rule.providers]

    async def _recipient(self, bid: Bid) -> PublicKey:
        account = self.client.orders.account
        if bid.designated == OPEN:
            return await account.escrow_key()
        if bid.box_key is not None:
            return await account.box_key(bid.designated, bid.box_key)
        known = self._box_keys.get(bid.designated)
        if known is None:
            known = self._box_keys[bid.designated] = await self.client.orders.box_key(bid.designated)
        return known

    async def _candidates(self, model: Model, rule: Rule) -> tuple[Candidate, ...]:
        key = (model.id, rule.window)
        if not self._is_fresh(key):
            async with self._asking.setdefault(key, anyio.Lock()):  # those that come together ask once
                if not self._is_fresh(key):
                    await self._ask(key, model, rule)
        kept = self._kept[key]
        kept.used_at = self.monotonic()
        return kept.candidates

    def _is_fresh(self, key: tuple[str, str]) -> bool:
        kept = self._kept.get(key)
        if kept is None:
            return False
        seconds = 2 * CANDIDATE_SECONDS if kept.candidates else _NOBODY_SECONDS
        return self.monotonic() - kept.read_at <= seconds

    async def _ask(self, key: tuple[str, str], model: Model, rule: Rule) -> None:
        endpoint = model.svc.endpoint

        async def ask() -> tuple[Candidate, ...]:
            return await self.client.probe(model.id, {}, window=rule.window, endpoint=endpoint)

        found, now = await ask(), self.monotonic()
        kept = self._kept[key] = _KeptCandidates(found, now, now, ask)
        await self._look(kept)

    async def _look(self, kept: _KeptCandidates) -> None:
        """At the room of the cheapest, where there is a choice. It is a help: without it our own jobs are counted."""
        if len(kept.candidates) < 2:
            return

        async def look(provider: int) -> None:
            with suppress(SvcError):
                self.load.learn(await self.client.market.provider(provider))

        async with anyio.create_task_group() as tasks:
            for one in kept.candidates[:_MOST_LOOKED_AT]:
                tasks.start_soon(look, one.provider_id)

    # --- charges ----------------------------------------------------------------------------------------------

    async def quote(self, prepared: PreparedOrder) -> Quoted:
        """Computed from the charges of the last quote, or asked for where there was none."""
        async with self._quoting:  # those that come together ask once
            if (charges := self._charges) is None:
                quoted = await self.client.quote(prepared)
                self._charges = fee_terms(quoted.quote)
                return quoted
        return computed_quote(prepared, charges)

    def forget_charges(self) -> None:
        self._charges = None

    # --- ahead of use -----------------------------------------------------------------------------------------

    async def keep_warm(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Until it is cancelled."""
        while True:
            await sleep(CANDIDATE_SECONDS)
            await self.warm()

    async def warm(self) -> None:
        """What is used, asked for again. What cannot be asked now is asked soon, or by the request that needs it."""
        now = self.monotonic()
        for key, kept in [*self._kept.items()]:
            if now - kept.used_at > _USED_SECONDS:
                del self._kept[key]
                self._asking.pop(key, None)
                continue
            with suppress(SvcError):  # of one model: the others are asked for all the same
                kept.candidates, kept.read_at = await kept.ask(), self.monotonic()
                if now - kept.used_at < _LOOKED_SECONDS:
                    await self._look(kept)
        if self._kept and now - self._models_at > MODEL_SECONDS / 2:
            with suppress(SvcError):
                await self._list()
                for name, _ in [*self._kept]:
                    await self.client.orders.account.model(name)
