"""Market data for purchases, cached and refreshed ahead of use: models, candidates, prices and charges.

So a client's request waits only for the post of its order, not for market data. If the price has changed since the last
refresh, the reply to the post has the new price.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

import anyio
import attrs

from common.box import PublicKey
from common.quotes import FeeTerms
from svc.client import Client
from svc.core.bids import OPEN_PROVIDER, Bid, Rates, read_rates
from svc.core.orders import PreparedOrder
from svc.core.quote_check import compute_quote, fee_terms
from svc.errors import NoProvider, SvcError
from svc.records import Candidate, Model, Quoted
from svc.serve.load import ProviderLoad
from svc.serve.problems import model_not_found
from svc.serve.settings import BuyingRule, ServeSettings

_MAX_CAPACITY_READS: Final = 8  # only the cheapest providers' capacity is read
CANDIDATE_REFRESH_INTERVAL_S: Final = 5.0  # below the 15 s for which a provider stays a candidate after a poll
MAX_MODEL_LIST_AGE_S: Final = 60.0
_MAX_EMPTY_LIST_AGE_S: Final = 1.0  # an empty list of candidates is read again after this time
_CAPACITY_REFRESH_IDLE_LIMIT_S: Final = 60.0  # capacities unused for longer are not refreshed
_CANDIDATE_REFRESH_IDLE_LIMIT_S: Final = 600.0  # candidates unused for longer are dropped
_MAX_MODELS: Final = 1000


@attrs.frozen(slots=True)
class MarketOffer:
    """Bid for a job, and the key to which the job is sealed. `provider` is 0 for an open order.

    The job counts against the provider's capacity until `ProviderLoad.on_ended` is called.
    """

    bid: Bid
    recipient: PublicKey = attrs.field(repr=False)

    @property
    def provider(self) -> int:
        return self.bid.designated


@attrs.define
class _CachedCandidates:
    """Candidates of one model and window. `read_candidates` reads the candidates again."""

    candidates: tuple[Candidate, ...]
    read_at: float
    last_used_at: float
    read_candidates: Callable[[], Awaitable[tuple[Candidate, ...]]]


@attrs.define(eq=False)
class Prices:
    """Cached market data. `monotonic` is the clock of the cache. Tests replace this clock."""

    client: Client
    settings: ServeSettings
    monotonic: Callable[[], float] = anyio.current_time
    load: ProviderLoad = attrs.field(init=False)
    _fee_terms: FeeTerms | None = None
    _models: dict[str, Model] = attrs.field(factory=dict)
    _models_read_at: float = float("-inf")
    _models_lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    _cached_candidates: dict[tuple[str, str], _CachedCandidates] = attrs.field(factory=dict)
    _box_keys: dict[int, PublicKey] = attrs.field(factory=dict)
    _refresh_locks: dict[tuple[str, str], anyio.Lock] = attrs.field(factory=dict)
    _quote_lock: anyio.Lock = attrs.field(factory=anyio.Lock)

    def __attrs_post_init__(self) -> None:
        buying = self.settings.buying
        self.load = ProviderLoad(buying.premium, buying.claim_seconds, buying.exclude_seconds, self.monotonic)

    async def models(self) -> dict[str, Model]:
        """Return the available models, by the names under which clients request them."""
        known = await self._market_models()
        named = {name: each.model or name for name, each in self.settings.models.items()}
        names = {} if self.settings.only_named else {name: name for name in known}
        return {name: known[model] for name, model in {**names, **named}.items() if model in known}

    async def find_model(self, name: str, allowed_names: Collection[str]) -> tuple[Model, BuyingRule]:
        """Return a model and its buying rule.

        Raises Problem (`model_not_found`) if the model is missing or not in `allowed_names`.
        """
        if allowed_names and name not in allowed_names:
            raise model_not_found(name, "is not available to this key")
        model_settings = self.settings.models.get(name)
        if model_settings is None and self.settings.only_named:
            raise model_not_found(name, "is not listed in serve.toml, and only_named is set")
        market_name = name if model_settings is None or model_settings.model is None else model_settings.model
        model = (await self._market_models()).get(market_name)
        if model is None:
            raise model_not_found(name, "does not exist or accepts no orders: see GET /v1/models")
        checked = await self.client.orders.account.model(market_name)  # checked against the chain if a node is set
        return checked, self.settings.rule_for(name)

    async def _market_models(self) -> dict[str, Model]:
        async with self._models_lock:
            if self.monotonic() - self._models_read_at > MAX_MODEL_LIST_AGE_S:
                await self._refresh_models()
            return self._models

    async def _refresh_models(self) -> None:
        listed = await self.client.models.list(limit=_MAX_MODELS)
        self._models = {model.id: model for model in listed if model.svc.enabled}
        self._models_read_at = self.monotonic()

    async def best_offer(self, model: Model, rule: BuyingRule, tried_providers: Collection[int]) -> MarketOffer:
        """Return the best offer to an untried provider. Providers that failed recently come last. Raises NoProvider."""
        if rule.is_open:
            if OPEN_PROVIDER in tried_providers:
                raise NoProvider(f"no provider claimed the open order for {model.id}")
            return await self._build_offer(Bid(self._rates_of(rule), OPEN_PROVIDER))
        bids = self._bids_at_rule_rates(rule) if rule.has_rates else await self._market_bids(model, rule)
        untried = [bid for bid in bids if bid.designated not in tried_providers]
        if not untried:
            subject = (
                f"none of the providers {', '.join(map(str, rule.providers))}" if rule.providers else "no provider"
            )
            detail = ", apart from those already tried" if tried_providers else ""
            raise NoProvider(f"{subject} is live for {model.id} in a window of {rule.window}{detail}")
        return await self._build_offer(self.load.sort(untried)[0])

    async def _build_offer(self, bid: Bid) -> MarketOffer:
        self.load.on_chosen(bid.designated)  # count the job now, so that a parallel request sees it
        try:
            return MarketOffer(bid, await self._recipient_key(bid))
        except BaseException:
            self.load.on_ended(bid.designated, claimed=False)
            raise

    def other_providers(self, model: Model, rule: BuyingRule, tried_providers: Collection[int]) -> list[int]:
        """Return the untried providers that would accept the job, from cached data."""
        if rule.is_open:
            return []
        if rule.has_rates:
            return [provider for provider in rule.providers if provider not in tried_providers]
        cached = self._cached_candidates.get((model.id, rule.window))
        known = () if cached is None else self._select_candidates(cached.candidates, rule)
        return [candidate.provider_id for candidate in known if candidate.provider_id not in tried_providers]

    def _bids_at_rule_rates(self, rule: BuyingRule) -> list[Bid]:
        return [Bid(self._rates_of(rule), provider) for provider in rule.providers]

    def _rates_of(self, rule: BuyingRule) -> Rates:
        return read_rates(rule.rate_in, rule.rate_out) or Rates(0, 0)

    async def _market_bids(self, model: Model, rule: BuyingRule) -> list[Bid]:
        found = self._select_candidates(await self._candidates(model, rule), rule)
        return [
            Bid(Rates(candidate.rate_in, candidate.rate_out), candidate.provider_id, candidate.box_key)
            for candidate in found
        ]

    def _select_candidates(self, candidates: Collection[Candidate], rule: BuyingRule) -> list[Candidate]:
        return [candidate for candidate in candidates if not rule.providers or candidate.provider_id in rule.providers]

    async def _recipient_key(self, bid: Bid) -> PublicKey:
        account = self.client.orders.account
        if bid.designated == OPEN_PROVIDER:
            return await account.escrow_key()
        if bid.box_key is not None:
            return await account.verify_box_key(bid.designated, bid.box_key)
        known = self._box_keys.get(bid.designated)
        if known is None:
            known = self._box_keys[bid.designated] = await self.client.orders.box_key(bid.designated)
        return known

    async def _candidates(self, model: Model, rule: BuyingRule) -> tuple[Candidate, ...]:
        key = (model.id, rule.window)
        if not self._is_fresh(key):
            async with self._refresh_locks.setdefault(key, anyio.Lock()):  # parallel requests share one read
                if not self._is_fresh(key):
                    await self._refresh_candidates(key, model, rule)
        cached = self._cached_candidates[key]
        cached.last_used_at = self.monotonic()
        return cached.candidates

    def _is_fresh(self, key: tuple[str, str]) -> bool:
        cached = self._cached_candidates.get(key)
        if cached is None:
            return False
        seconds = 2 * CANDIDATE_REFRESH_INTERVAL_S if cached.candidates else _MAX_EMPTY_LIST_AGE_S
        return self.monotonic() - cached.read_at <= seconds

    async def _refresh_candidates(self, key: tuple[str, str], model: Model, rule: BuyingRule) -> None:
        endpoint = model.svc.endpoint

        async def probe() -> tuple[Candidate, ...]:
            return await self.client.probe(model.id, {}, window=rule.window, endpoint=endpoint)

        found, now = await probe(), self.monotonic()
        cached = self._cached_candidates[key] = _CachedCandidates(found, now, now, probe)
        await self._read_capacities(cached)

    async def _read_capacities(self, cached: _CachedCandidates) -> None:
        """Read the capacities of the cheapest candidates if there is more than one. Errors are ignored."""
        if len(cached.candidates) < 2:
            return

        async def read_capacity(provider: int) -> None:
            with suppress(SvcError):
                self.load.update(await self.client.market.provider(provider))

        async with anyio.create_task_group() as tasks:
            for candidate in cached.candidates[:_MAX_CAPACITY_READS]:
                tasks.start_soon(read_capacity, candidate.provider_id)

    async def quote(self, prepared: PreparedOrder) -> Quoted:
        """Return a quote computed from the last known charges. If none are known, request a quote."""
        async with self._quote_lock:  # parallel requests share one quote
            if (charges := self._fee_terms) is None:
                quoted = await self.client.quote(prepared)
                self._fee_terms = fee_terms(quoted.quote)
                return quoted
        return compute_quote(prepared, charges)

    async def get_fee_terms(self, prepare: Callable[[], Awaitable[PreparedOrder]]) -> FeeTerms:
        """Return the last known charges. If none are known, quote the order that `prepare` returns."""
        if self._fee_terms is None:
            return fee_terms((await self.quote(await prepare())).quote)
        return self._fee_terms

    def forget_fee_terms(self) -> None:
        self._fee_terms = None

    async def refresh_repeatedly(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Refresh the cache until cancelled."""
        while True:
            await sleep(CANDIDATE_REFRESH_INTERVAL_S)
            await self.refresh_used_data()

    async def refresh_used_data(self) -> None:
        """Refresh the data in use. Errors are ignored: the next round or the next request tries again."""
        now = self.monotonic()
        for key, cached in [*self._cached_candidates.items()]:
            if now - cached.last_used_at > _CANDIDATE_REFRESH_IDLE_LIMIT_S:
                del self._cached_candidates[key]
                self._refresh_locks.pop(key, None)
                continue
            with suppress(SvcError):  # one model failed: refresh the others
                cached.candidates, cached.read_at = await cached.read_candidates(), self.monotonic()
                if now - cached.last_used_at < _CAPACITY_REFRESH_IDLE_LIMIT_S:
                    await self._read_capacities(cached)
        if self._cached_candidates and now - self._models_read_at > MAX_MODEL_LIST_AGE_S / 2:
            with suppress(SvcError):
                await self._refresh_models()
                for name, _ in [*self._cached_candidates]:
                    await self.client.orders.account.model(name)
