"""Steps of an order: probe, price, seal, sign, quote, pay and submit."""

import warnings
from collections.abc import Callable
from typing import Any, Final

import attrs
import httpx
import msgspec
from anyio import to_thread

from common.api.market import Candidates
from common.api.progress import RestsOn
from common.box import PublicKey
from common.envelope import Envelope
from common.refusal import Refused
from svc.account import Account
from svc.chain import facts
from svc.core.bids import OPEN, Bid, market_bid
from svc.core.order_request import OrderRequest, PricedRequest, price_probe, price_request, probe_body
from svc.core.orders import OrderTerms, PreparedOrder, SealedOrder, seal_order
from svc.core.quote_check import MAX_SUBMIT_ATTEMPTS, checked_amount, fee_terms
from svc.core.windows import WINDOW_FORMS, expiry, is_window, window_words
from svc.error_conversion import raises_svc_errors
from svc.errors import ApiError, ConnectionFailed, NoProvider, NotFound, OrderRefused, OutcomeUnknown, QuoteRefused
from svc.files import Files
from svc.market import Market
from svc.records import Candidate, Checked, Job, Model, Posted, Provider, Quote, Quoted
from svc.wire.transport import error_of, read

_PAYMENT_REQUIRED: Final = frozenset({402})
_SERVER_ERROR_STATUS: Final = 500
_ASYNC_HEADERS: Final = {"prefer": "respond-async"}  # answer once the order is stored
_STATUS_STORED: Final = 202
_CHAIN_READ_ATTEMPTS: Final = 8  # a node may be some blocks behind
_CHAIN_READ_SECONDS: Final = 0.75


class UnlistedParameter(UserWarning):
    """Warning: a parameter that the model's schema does not list was sent."""


class OtherWindow(UserWarning):
    """Warning: a window of an unknown form is signed as one hour."""


@attrs.frozen(slots=True)
class Submitted:
    """Submitted order.

    `rests_on`: `stored`, if the coordinator will send it; `broadcast`, if it was not mined within a minute; or `block`.
    `mined` is True only for `block`; before, the chain may still reject the order, which `wait` reports. `tx_hash` and
    `task_cid` are missing if the answer was lost and the job was looked up. `on_chain`: a node showed the job with the
    signed terms; False without a node, or if no node had seen the job yet.
    """

    job_id: str
    amount: int
    task_cid: str | None
    tx_hash: str | None
    mined: bool = True
    on_chain: bool = False
    rests_on: RestsOn = "block"


@raises_svc_errors
@attrs.frozen
class Orders:
    """Steps of an order."""

    account: Account
    files: Files

    async def probe(self, request: OrderRequest) -> tuple[Candidate, ...]:
        """Return the live providers for this request, best first."""
        return await self._probe(await self._price(request, price_probe))

    async def prepare(self, request: OrderRequest) -> PreparedOrder:
        """Return the sealed and signed order. Nothing is owed yet."""
        priced = await self._price(request, price_request)
        await self._check_window(request.window, priced)
        for name in priced.unlisted:
            message = f"{priced.model.id} does not list the parameter {name!r}; it is sent unchanged"
            warnings.warn(message, UnlistedParameter, stacklevel=7)
        bid, recipient = await self.bid(priced)
        return await self._sign(priced, bid, recipient)

    async def prepare_for(self, request: OrderRequest, model: Model, bid: Bid, recipient: PublicKey) -> PreparedOrder:
        """Prepare an order from known data, without requests and warnings."""
        try:
            priced = price_request(request, model)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        return await self._sign(priced, bid, recipient)

    async def _sign(self, priced: PricedRequest, bid: Bid, recipient: PublicKey) -> PreparedOrder:
        sealed = await self._seal(priced, bid, recipient)
        signature = await self.account.wallet().sign(sealed.to_sign())
        return PreparedOrder(sealed, signature, priced.unlisted)

    async def quote(self, prepared: PreparedOrder) -> Quoted:
        transport = self.account.transport
        answer = await transport.send("POST", "/v1/jobs", json=prepared.body(), expected=_PAYMENT_REQUIRED)
        return read(answer, Quoted)

    async def check(self, prepared: PreparedOrder) -> Checked:
        return await self.account.transport.post("/v1/jobs/check", Checked, prepared.body(), safe=True)

    async def submit(
        self,
        prepared: PreparedOrder,
        quoted: Quoted | None = None,
        max_amount: int | None = None,
        *,
        final: bool = False,
    ) -> Submitted:
        """Sign the payment and post the order. If the quote changed, pay the new one, at most three times.

        With `final`, wait for the order's block.
        """
        quote = (quoted or await self.quote(prepared)).quote
        await self.payable(prepared, quote, max_amount)  # check before an upload
        sealed = prepared.sealed_order.sealed
        container_cid = None
        if not sealed.fits_inline:
            container_cid = (await self.files.upload(sealed.container, "input", filename="container")).svc.cid
        for _ in range(MAX_SUBMIT_ATTEMPTS):
            amount = await self.payable(prepared, quote, max_amount)
            self.account.charges = fee_terms(quote)
            auth_sig = await self.account.wallet().sign(prepared.payment(amount))
            body = prepared.submission(amount, auth_sig, container_cid)
            outcome = await self._post(prepared, amount, body, {} if final else _ASYNC_HEADERS)
            if isinstance(outcome, Submitted):
                return attrs.evolve(outcome, on_chain=outcome.mined and await self.require_on_chain(prepared))
            quote = outcome.quote
        raise QuoteRefused("the price changed before every attempt: retry", code="price_changed")

    async def bid(self, priced: PricedRequest) -> tuple[Bid, PublicKey]:
        """Return the bid of an order, and the key to seal it to."""
        if priced.rates is None:
            try:
                bid = market_bid(await self._probe(priced), priced.provider)
            except NoProvider as error:
                raise NoProvider(f"{error.message}{await self._describe_priced_windows(priced)}") from None
        else:
            bid = Bid(priced.rates, priced.provider or OPEN)
        if bid.box_key is not None:
            return bid, await self.account.box_key(bid.designated, bid.box_key)
        if bid.designated == OPEN:
            return bid, await self.account.escrow_key()
        return bid, await self.box_key(bid.designated)

    async def box_key(self, provider: int) -> PublicKey:
        """Return a provider's registered key."""
        answer = await self.account.transport.get(f"/evm/providers/{provider}", Provider)
        if answer.box_key is None:
            raise NoProvider(f"provider {provider} has published no box key")
        if answer.provider_id != provider:
            raise OrderRefused(f"requested provider {provider}, got {answer.provider_id}", param="provider")
        return await self.account.box_key(provider, answer.box_key)

    async def payable(self, prepared: PreparedOrder, quote: Quote, max_amount: int | None) -> int:
        """Return the amount that may be authorised. Raises QuoteRefused, OverCeiling and ChainContradicts."""
        amount = checked_amount(prepared, quote, await self.account.order_ceiling(max_amount))
        await self.account.vouching.fees(quote)
        return amount

    async def require_on_chain(self, prepared: PreparedOrder) -> bool:
        """Return True if a node shows the job as signed.

        Report a job that no node shows yet. Raises ChainContradicts.
        """
        chain = self.account.vouching.chain
        if chain is None:
            return False
        for attempt in range(_CHAIN_READ_ATTEMPTS):
            if attempt:
                await self.account.transport.sleep(_CHAIN_READ_SECONDS)
            if await facts.is_posted(chain.later(), prepared.sealed_order):
                return True
        self.account.vouching.report(f"no node shows job {prepared.id} yet: check again with svc verify")
        return False

    async def _check_window(self, window: str, priced: PricedRequest) -> None:
        """Check the window before signing. Raises OrderRefused, which lists the allowed windows."""
        if not is_window(window):
            warnings.warn(f"unknown window {window!r}, signed as 1h: use {WINDOW_FORMS}", OtherWindow, stacklevel=8)
        chain = self.account.vouching.chain
        registry = (await self.account.market()).job_registry
        if chain is None:
            reported = await self.account.reported_windows(priced.sla_secs)
            if reported is None or priced.sla_secs in reported:
                return
        elif await facts.window_allowed(chain.later(), registry, priced.sla_secs):
            return
        try:
            (await Market(self.account).windows(window)).check(window, priced.sla_secs)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _describe_priced_windows(self, priced: PricedRequest) -> str:
        """Return the windows that have asks for this model, for an error message."""
        try:
            floors = await Market(self.account).floors(model=priced.model.svc.model_id, limit=None)
        except (ApiError, ConnectionFailed):  # the error is raised without the windows
            return ""
        priced_windows = sorted({floor.sla for floor in floors} - {priced.sla_secs})
        window_text = window_words(priced.sla_secs)
        return (
            f" of {window_text}; windows with asks: {', '.join(map(window_words, priced_windows))}"
            if priced_windows
            else f" of {window_text}"
        )

    async def _price(
        self, request: OrderRequest, pricing: Callable[[OrderRequest, Model], PricedRequest]
    ) -> PricedRequest:
        model = await self.account.model(request.model)
        try:
            return pricing(request, model)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _probe(self, priced: PricedRequest) -> tuple[Candidate, ...]:
        transport = self.account.transport
        answer = await transport.send("POST", "/v1/jobs", json=probe_body(priced), expected=_PAYMENT_REQUIRED)
        return read(answer, Candidates[int]).candidates

    async def _seal(self, priced: PricedRequest, bid: Bid, recipient: PublicKey) -> SealedOrder:
        account = self.account
        market, keys = await account.market(), await account.result_keys()
        now = account.transport.clock.now()
        terms = OrderTerms(
            model=priced.model.id,
            model_id=priced.model.svc.model_id,
            modality=priced.modality,
            sla_secs=priced.sla_secs,
            units=priced.units,
            rates=bid.rates,
            designated=bid.designated,
            expires_at=expiry(now, priced.sla_secs, account.settings.settlement_margin),
        )
        owner = account.wallet().address
        envelope = Envelope(owner, priced.model.id, priced.input, keys[0].public, priced.custom_id)
        try:  # in a thread, because a payload may be large
            return await to_thread.run_sync(seal_order, market, recipient, envelope, terms)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _post(
        self, prepared: PreparedOrder, amount: int, body: dict[str, Any], headers: dict[str, str]
    ) -> Submitted | Quoted:
        """Post the order. Never repeat it after an error status; after a lost answer, look the job up first.

        Raises OutcomeUnknown if there was no answer and the look-up failed.
        """
        transport = self.account.transport
        attempt, answer_lost = 0, False
        while True:
            try:
                response = await transport.once("POST", "/v1/jobs", json=body, headers=headers)
            except ConnectionFailed as error:
                answer_lost = True
                submitted = await self._find_posted(prepared, amount)
                if submitted is not None:
                    return submitted
                if not error.retryable or attempt == transport.retries.max_retries:
                    raise _outcome_unknown(prepared, error) from None
                await transport.sleep(transport.retries.pause(attempt))
                attempt += 1
                continue
            if response.status_code == _STATUS_STORED:
                self.account.supports_progress = True
            outcome = _outcome(response, prepared, amount)
            if outcome is not None:
                return outcome
            api_error = error_of(response)
            failed = api_error.status >= _SERVER_ERROR_STATUS and not api_error.retryable
            accepted = api_error.code == "DuplicateJob" or failed
            submitted = await self._wait_for_posted(prepared, amount) if accepted else None
            if submitted is not None:
                return submitted
            raise _outcome_unknown(prepared, api_error) if answer_lost and api_error.retryable else api_error

    async def _find_posted(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        try:
            return await self._read_posted(prepared, amount)
        except (ApiError, ConnectionFailed) as error:
            raise _outcome_unknown(prepared, error) from None

    async def _wait_for_posted(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        """Look for the job of an earlier attempt that got no answer.

        Only this order can make this job. The chain has the job, and the index shows it a moment later.
        """
        transport = self.account.transport
        for attempt in range(transport.retries.max_retries):
            submitted = await self._read_posted(prepared, amount)
            if submitted is not None:
                return submitted
            await transport.sleep(transport.retries.pause(attempt))
        return await self._read_posted(prepared, amount)

    async def _read_posted(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        try:
            job = await self.account.transport.get(f"/v1/jobs/{prepared.id}", Job)
        except NotFound:
            return None
        return Submitted(prepared.id, amount, job.svc.task_cid, None)


def _outcome_unknown(prepared: PreparedOrder, error: ApiError | ConnectionFailed) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"cannot tell whether job {prepared.id} was posted ({error.message}): look for it before ordering again"
    )


def _outcome(response: httpx.Response, prepared: PreparedOrder, amount: int) -> Submitted | Quoted | None:
    """Return the outcome, or None if the answer is an error."""
    if response.status_code == 201:
        posted = read(response, Posted)
        return Submitted(prepared.id, amount, posted.task_cid, posted.tx_hash)
    if response.status_code == _STATUS_STORED:
        return Submitted(prepared.id, amount, None, None, mined=False, rests_on="stored")
    if response.status_code == 409 and "quote" in read(response, dict[str, msgspec.Raw]):
        return read(response, Quoted)
    if response.status_code == 504:
        error = error_of(response)
        if error.type == "receipt_timeout":
            return Submitted(prepared.id, amount, None, error.code, mined=False, rests_on="broadcast")
    return None
