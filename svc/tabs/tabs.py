"""Tabs: many requests to one provider in one job. Answers are streamed, and one settle pays for all of them.

    async with client.tabs.open("demo/chat") as tab:
        stream = await tab.request({"messages": [{"role": "user", "content": "Why is the sky blue?"}]})
        async for chunk in stream:
            ...
        reply = await stream.answer()
    print(tab.outcome.cost)

Each request carries a voucher. The voucher states the largest allowed charge and the acknowledged units, and is signed
with a key of the tab. A dishonest provider could charge the whole cap, although only acknowledged answers are owed. So
the cap is small, and the client opens no more tabs with a provider that overcharged.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Final, TypedDict, Unpack

import anyio
import attrs

from common.box import PublicKey, SecretKey
from common.messages.tabs import TabKey
from common.pricing.model_input import TEXT_ENDPOINTS
from common.pricing.units import DEFAULT_OUTPUT_TOKENS, MAX_UNITS, Units
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from common.tab.terms import ORDER_UNITS_IN, TabDelegation, TabTerms, announces_tabs
from svc.account import Account
from svc.core.bids import Bid, Rates
from svc.core.known_market import market_url
from svc.core.order_request import PricedRequest
from svc.core.orders import PreparedOrder
from svc.core.quote_check import fee_terms
from svc.core.tabs import OwnerTab
from svc.core.typed_data import build_signing_request
from svc.core.windows import expiry_time, format_window, window_seconds
from svc.errors import InvalidRequest, NoProvider, NotFound, OrderRefused, SvcError, TabEnded
from svc.jobs import Jobs
from svc.market import Market
from svc.orders import Orders
from svc.records import Job, Model
from svc.results import Results, read_job_id
from svc.tabs.files import StoredTab, TabFile, TabFiles, faulty_provider_key, faulty_provider_prefix
from svc.tabs.outcome import TabChecker, TabOutcome
from svc.tabs.tab import Tab

DEFAULT_REQUESTS: Final = 20
DEFAULT_WINDOW: Final = "1h"
CLAIM_TIMEOUT_S: Final = 30.0  # an order that no provider has claimed after this time is cancelled
_CONNECT_TIMEOUT_S: Final = 15.0  # to connect a claimed tab, or to send its close
_SETTLE_TIMEOUT_S: Final = 120.0
_LAST_SEND_TIMEOUT_S: Final = 2.0
_MAX_PROVIDER_READS: Final = 8

BeforePost = Callable[[TabFile], Awaitable[None]]


class TabOptions(TypedDict, total=False):
    """Terms of a tab. `units_out` is the cap. The default cap fits `requests` answers of the default maximum length."""

    provider: int | None
    requests: int
    window: str
    units_out: int | None
    max_amount: int | None


@attrs.frozen
class TabOrderRequest:
    """Model and terms of a requested tab."""

    model: str
    provider: int | None = None
    requests: int = DEFAULT_REQUESTS
    window: str = DEFAULT_WINDOW
    units_out: int | None = None
    max_amount: int | None = None

    @property
    def cap(self) -> int:
        cap = self.requests * DEFAULT_OUTPUT_TOKENS if self.units_out is None else self.units_out
        if not 0 < cap <= MAX_UNITS:
            raise Refused(
                f"a tab's cap must be 1 to {MAX_UNITS} units of output, not {cap}: change requests or units_out",
                "requests",
            )
        return cap


@attrs.frozen(slots=True)
class _TabKeys:
    """Keys of one tab. `secret` is the private key that signs the tab's vouchers."""

    channel: SecretKey
    secret: bytes = attrs.field(repr=False)
    delegation: TabDelegation


@attrs.frozen(slots=True)
class StoredTabInfo:
    """Stored tab of this wallet.

    `acknowledged`: units that this client has acknowledged. `job`: the tab's job, or None if the coordinator does not
    know the job.
    """

    file: TabFile
    acknowledged: int
    job: Job | None


@attrs.frozen
class Tabs:
    """Opens, continues and closes the tabs of a wallet."""

    account: Account
    orders: Orders
    jobs: Jobs
    results: Results
    files: TabFiles

    @asynccontextmanager
    async def open(
        self, model: str, *, before_post: BeforePost | None = None, **terms: Unpack[TabOptions]
    ) -> AsyncIterator[Tab]:
        """Order a tab, wait for its claim, and yield the tab. The block's end closes the tab and sets `tab.outcome`.

        `TabOptions` documents the terms. The default window is an hour, and the default cap allows 20 answers. After an
        error in the block, the tab is closed without waiting for the settle. `before_post` is called with the file of
        the tab before the order is posted, so that a caller can record the maximum cost. If `before_post` raises,
        nothing is posted.

        Raises NoProvider if no provider accepts the tab, OverCeiling, TabEnded (`tab_refused`), and TabFaulty
        (`overcharged`).
        """
        tab_request = TabOrderRequest(model, **terms)
        with ExitStack() as locks:
            stored, model_details = await self._order_tab(tab_request, before_post, locks)
            async with self._run_tab(stored, model_details, claimed=False) as tab:
                yield tab

    @asynccontextmanager
    async def resume(self, job_id: str) -> AsyncIterator[Tab]:
        """Continue a tab that an earlier block left open. Raises OrderRefused: `unknown_tab`, `in_use`."""
        with ExitStack() as locks:
            stored = self._lock_stored(job_id, locks)
            model_details = await self.account.model(stored.file.model)
            async with self._run_tab(stored, model_details, claimed=True) as tab:
                yield tab

    async def close(self, job_id: str) -> TabOutcome:
        """Close and check a tab that an earlier block or a killed process left open. Wait for its settle."""
        with ExitStack() as locks:
            stored = self._lock_stored(job_id, locks)
            model_details = await self.account.model(stored.file.model)
            job = await self._find_job(stored.file.id)
            if job is not None and not job.ended:
                async with self._connect_tab(stored, model_details, claimed=True) as tab:
                    with anyio.move_on_after(_CONNECT_TIMEOUT_S):
                        await tab.send_close()
            return await self._check_settled(stored, await self._load_owner_tab(stored.file, stored.state))

    async def list(self) -> tuple[StoredTabInfo, ...]:
        """Return the stored tabs of this wallet at this coordinator, newest first."""
        owner, url = self.account.wallet().address, market_url(self.account.settings.base_url)
        found = []
        for file, state in self.files.list(url, owner):
            owner_tab = await self._load_owner_tab(file, state)
            found.append(StoredTabInfo(file, owner_tab.acknowledged, await self._find_job(file.id)))
        return tuple(found)

    async def faulty_providers(self) -> dict[int, str]:
        """Return the reason for the exclusion of each excluded provider, by provider id."""
        market = await self.account.market()
        prefix = faulty_provider_prefix(market.chain_id, market.job_registry)
        reasons = self.files.faulty_providers()
        return {int(key.removeprefix(prefix)): why for key, why in reasons.items() if key.startswith(prefix)}

    async def forgive(self, provider: int) -> bool:
        """Allow tabs with a faulty provider again. Return False if the provider was not excluded."""
        market = await self.account.market()
        return self.files.forgive(f"{faulty_provider_prefix(market.chain_id, market.job_registry)}{provider}")

    async def _order_tab(
        self, tab_request: TabOrderRequest, before_post: BeforePost | None, locks: ExitStack
    ) -> tuple[StoredTab, Model]:
        model = await self.account.model(tab_request.model)
        try:
            cap = tab_request.cap
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        if model.svc.endpoint is not None and model.svc.endpoint not in TEXT_ENDPOINTS:
            raise OrderRefused(
                f"{model.id} does not return text, and only text models have tabs: use svc run", param="model"
            )
        priced = _price_tab(model, {}, cap, tab_request)
        bid, recipient = await self._choose_provider(priced)
        keys = await self._create_keys(bid.designated, window_seconds(tab_request.window))
        terms = TabTerms(keys.channel.public, keys.delegation)
        prepared = await self.orders.sign(_price_tab(model, terms.model_input(), cap, tab_request), bid, recipient)
        quoted = await self.orders.quote(prepared)
        amount = await self.orders.check_quote(prepared, quoted.quote, tab_request.max_amount)
        file = self._build_file(prepared, fee_terms(quoted.quote), amount, recipient, keys)
        stored = locks.enter_context(self.files.create(file, keys.secret))
        if before_post is not None:
            try:
                await before_post(file)
            except BaseException:
                stored.remove()
                raise
        try:
            await self.orders.submit(prepared, quoted, amount)
        except SvcError as error:
            if not error.retryable and error.code != "outcome_unknown":
                stored.remove()
            raise
        return stored, model

    async def _create_keys(self, provider: int, seconds: int) -> "_TabKeys":
        """Create the keys of a tab. The wallet signs a delegation that lets the new key sign vouchers."""
        secret, now = SecretKey.generate().raw, self.account.transport.clock.now()
        until = expiry_time(now, seconds, self.account.settings.settlement_margin) + seconds
        domains, message = (await self.account.market()).domains, TabKey(Wallet(secret).address, provider, until)
        signature = await self.account.wallet().sign(build_signing_request("tab key", domains.tabs, message))
        return _TabKeys(SecretKey.generate(), secret, TabDelegation(message.key, until, signature))

    def _build_file(
        self, prepared: PreparedOrder, charges: FeeTerms, amount: int, box_key: PublicKey, keys: "_TabKeys"
    ) -> TabFile:
        order, market = prepared.sealed_order.order, prepared.sealed_order.market
        return TabFile(
            job_id=prepared.sealed_order.job_id,
            url=market_url(self.account.settings.base_url),
            owner=prepared.sealed_order.owner,
            chain_id=market.chain_id,
            job_registry=market.job_registry,
            provider=order.designated,
            box_key=box_key,
            model=prepared.terms.model,
            window_s=order.sla_secs,
            units_out=order.units_out,
            rate_in=order.rate_in,
            rate_out=order.rate_out,
            amount=amount,
            fee_terms=charges,
            posted_at=self.account.transport.clock.now(),
            expires_at=order.expires_at,
            channel_key=keys.channel,
            voucher_wallet=Wallet(keys.secret),
            delegation=keys.delegation,
        )

    async def _choose_provider(self, priced: PricedRequest) -> tuple[Bid, PublicKey]:
        """Return the bid for the best provider that announces tabs. Raises NoProvider."""
        faulty = await self.faulty_providers()
        if priced.provider in faulty:
            raise NoProvider(f"provider {priced.provider} is excluded from tabs: {faulty[priced.provider]}")
        found = await self.orders.candidates(priced)
        if priced.provider is not None:
            found = tuple(each for each in found if each.provider_id == priced.provider)
        for candidate in [each for each in found if each.provider_id not in faulty and each.room != 0][
            :_MAX_PROVIDER_READS
        ]:
            # Input is charged as units of output, so a provider with an input rate also needs an output rate.
            has_needed_rate = candidate.rate_out or not candidate.rate_in
            if has_needed_rate and await self._announces_tabs(candidate.provider_id):
                bid = Bid(Rates(candidate.rate_in, candidate.rate_out), candidate.provider_id, candidate.box_key)
                return bid, await self.account.verify_box_key(candidate.provider_id, candidate.box_key)
        subject = (
            "no live provider accepts" if priced.provider is None else f"provider {priced.provider} does not accept"
        )
        raise NoProvider(f"{subject} tabs for {priced.model.id} in a window of {format_window(priced.sla_secs)} now")

    async def _announces_tabs(self, provider: int) -> bool:
        return announces_tabs((await Market(self.account).provider(provider)).evidence)

    @asynccontextmanager
    async def _run_tab(self, stored: StoredTab, model: Model, *, claimed: bool) -> AsyncIterator[Tab]:
        """Yield a connected tab. At the end, close and check the tab, unless it is kept or the block failed."""
        async with self._connect_tab(stored, model, claimed=claimed) as tab:
            try:
                yield tab
            except Exception:
                with anyio.move_on_after(_LAST_SEND_TIMEOUT_S):
                    await tab.send_close()
                raise
            if tab.kept and tab.is_open:
                with anyio.move_on_after(_LAST_SEND_TIMEOUT_S):
                    await tab.flush()
            if not tab.kept or not tab.is_open:
                with anyio.move_on_after(_CONNECT_TIMEOUT_S):
                    await tab.send_close()
                tab.outcome = await self._check_settled(stored, tab.owner_tab)

    @asynccontextmanager
    async def _connect_tab(self, stored: StoredTab, model: Model, *, claimed: bool) -> AsyncIterator[Tab]:
        owner_tab = await self._load_owner_tab(stored.file, stored.state)
        tab = Tab(self.account, stored, owner_tab, self.jobs, model, self._add_faulty_provider)
        failed: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_supervised, tab, tab.run_connection)
            tasks.start_soon(self._run_supervised, tab, tab.run_sender)
            try:
                await self._wait_for_claim(tab, stored, claimed=claimed)
                yield tab
            except Exception as error:  # raise it below, because the task group would wrap it in an ExceptionGroup
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _run_supervised(self, tab: Tab, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task of a tab. An unexpected error ends the tab, so that no caller waits forever."""
        try:
            await run()
        except Exception as error:
            tab.finish(TabEnded(tab.id, "tab_failed", f"the tab failed ({type(error).__name__}: {error})"))

    async def _wait_for_claim(self, tab: Tab, stored: StoredTab, *, claimed: bool) -> None:
        """Wait for the handshake. Cancel the order if the provider does not claim the order in time."""
        seconds = _CONNECT_TIMEOUT_S if claimed else CLAIM_TIMEOUT_S
        with anyio.move_on_after(seconds):
            await self._wait_until_ready(tab, stored)
            return
        if not claimed:
            try:
                await self.jobs.cancel(tab.id)
            except InvalidRequest as refused:
                if refused.code != "NotCancellable":
                    raise
            else:
                stored.remove()
                raise NoProvider(
                    f"provider {tab.provider} did not claim the tab within {CLAIM_TIMEOUT_S:g} s,"
                    " so the tab is cancelled"
                )
        with anyio.move_on_after(_CONNECT_TIMEOUT_S):
            await self._wait_until_ready(tab, stored)
            return
        ending = "it will settle the idle tab, or the tab is refunded after its window"
        message = f"provider {tab.provider} does not answer: {ending}; check later with svc tab close {tab.id}"
        raise TabEnded(tab.id, "tab_lost", message)

    async def _wait_until_ready(self, tab: Tab, stored: StoredTab) -> None:
        try:
            await tab.wait_until_ready()
        except TabEnded as ended:
            if ended.code == "tab_refused":
                stored.remove()
                raise
            outcome = await self._check_settled(stored, tab.owner_tab)
            why = f"the provider has ended the tab ({outcome.closed}), which cost {outcome.cost} base units"
            raise TabEnded(tab.id, "tab_refused", why) from None

    async def _check_settled(self, stored: StoredTab, owner_tab: OwnerTab) -> TabOutcome:
        job = await self.jobs.wait(stored.file.id, timeout=_SETTLE_TIMEOUT_S)
        domains = (await self.account.market()).domains
        return await TabChecker(self.results, self.files, domains).check(job, stored, owner_tab)

    def _add_faulty_provider(self, file: TabFile, reason: str) -> None:
        self.files.add_faulty_provider(faulty_provider_key(file), f"job {file.id}: {reason}")

    def _lock_stored(self, job_id: str, locks: ExitStack) -> StoredTab:
        try:
            return locks.enter_context(self.files.lock(hex_of(read_job_id(job_id))))
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _load_owner_tab(self, file: TabFile, state: Mapping[str, object]) -> OwnerTab:
        domains = (await self.account.market()).domains
        owner_tab = OwnerTab(file.job_id, file.units_out, file.rate_in, file.rate_out, file.voucher_wallet, domains)
        if state:
            owner_tab.load(dict(state))
        return owner_tab

    async def _find_job(self, job_id: str) -> Job | None:
        try:
            return await self.jobs.get(job_id)
        except NotFound:
            return None


def _price_tab(model: Model, model_input: dict[str, object], cap: int, tab_request: TabOrderRequest) -> PricedRequest:
    return PricedRequest(
        model=model,
        input=model_input,
        modality="text",
        units=Units(ORDER_UNITS_IN, cap),
        sla_secs=window_seconds(tab_request.window),
        rates=None,
        provider=tab_request.provider,
        custom_id=None,
        unlisted_parameters=(),
    )
