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
from svc.core.bids import OPEN_PROVIDER, Bid, market_bid
from svc.core.order_request import (
    OrderRequest,
    PricedRequest,
    candidates_request_body,
    price_for_candidates,
    price_request,
)
from svc.core.orders import OrderTerms, PreparedOrder, SealedOrder, seal_order
from svc.core.quote_check import MAX_SUBMIT_ATTEMPTS, check_amount, fee_terms
from svc.core.windows import WINDOW_FORMS, expiry_time, format_window, is_valid_window
from svc.error_conversion import raises_svc_errors
from svc.errors import ApiError, ConnectionFailed, NoProvider, NotFound, OrderRefused, OutcomeUnknown, QuoteRefused
from svc.files import Files
from svc.market import Market
from svc.records import Candidate, Checked, Job, Model, Posted, Provider, Quote, Quoted
from svc.wire.transport import read_error, read_record

_PAYMENT_REQUIRED: Final = frozenset({402})
_SERVER_ERROR_STATUS: Final = 500
_ASYNC_HEADERS: Final = {"prefer": "respond-async"}  # the coordinator answers once it has stored the order
_STATUS_STORED: Final = 202
_MAX_CHAIN_READS: Final = 8  # a node that is some blocks behind is read again
_CHAIN_READ_PAUSE_S: Final = 0.75


class UnlistedParameter(UserWarning):
    """Warning: the order has a parameter that the model's schema does not list."""


class OtherWindow(UserWarning):
    """Warning: the order's window has an unknown form and is signed as one hour."""


@attrs.frozen(slots=True)
class Submitted:
    """Submitted order.

    `rests_on`: `stored` (the coordinator will broadcast the order), `broadcast` (not mined within a minute) or `block`
    (mined). `mined` is True only for `block`. Until then the chain may reject the order, and `wait` reports the
    rejection. `tx_hash` and `task_cid` are None if the coordinator did not report them. `on_chain` is True if a node
    showed the job with the signed terms.
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
    """Prices, seals, signs and posts single orders."""

    account: Account
    files: Files

    async def probe(self, request: OrderRequest) -> tuple[Candidate, ...]:
        """Return the live providers for this request, best first."""
        return await self.candidates(await self._price(request, price_for_candidates))

    async def prepare(self, request: OrderRequest) -> PreparedOrder:
        """Return the sealed and signed order. No payment is signed yet."""
        priced = await self._price(request, price_request)
        await self._check_window(request.window, priced)
        for name in priced.unlisted_parameters:
            message = f"the schema of {priced.model.id} does not list the parameter {name!r}, which is sent unchanged"
            warnings.warn(message, UnlistedParameter, stacklevel=7)
        bid, recipient = await self.choose_bid(priced)
        return await self.sign(priced, bid, recipient)

    async def prepare_for(self, request: OrderRequest, model: Model, bid: Bid, recipient: PublicKey) -> PreparedOrder:
        """Prepare an order from cached data. Sends no requests and gives no warnings."""
        try:
            priced = price_request(request, model)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        return await self.sign(priced, bid, recipient)

    async def sign(self, priced: PricedRequest, bid: Bid, recipient: PublicKey) -> PreparedOrder:
        """Seal and sign a checked request."""
        sealed = await self._seal(priced, bid, recipient)
        signature = await self.account.wallet().sign(sealed.signing_request())
        return PreparedOrder(sealed, signature, priced.unlisted_parameters)

    async def quote(self, prepared: PreparedOrder) -> Quoted:
        transport = self.account.transport
        answer = await transport.send("POST", "/v1/jobs", json=prepared.quote_body(), expected=_PAYMENT_REQUIRED)
        return read_record(answer, Quoted)

    async def check(self, prepared: PreparedOrder) -> Checked:
        return await self.account.transport.post("/v1/jobs/check", Checked, prepared.quote_body(), retry=True)

    async def submit(
        self,
        prepared: PreparedOrder,
        quoted: Quoted | None = None,
        max_amount: int | None = None,
        *,
        final: bool = False,
    ) -> Submitted:
        """Sign the payment and post the order. If the charges have changed, retry with the new quote, at most twice.

        With `final`, wait until the post is mined.
        """
        quote = (quoted or await self.quote(prepared)).quote
        await self.check_quote(prepared, quote, max_amount)  # reject a wrong quote before the upload
        sealed = prepared.sealed_order.sealed_container
        container_cid = None
        if not sealed.fits_inline:
            container_cid = (await self.files.upload(sealed.container, "input", filename="container")).svc.cid
        for _ in range(MAX_SUBMIT_ATTEMPTS):
            amount = await self.check_quote(prepared, quote, max_amount)
            self.account.last_fee_terms = fee_terms(quote)
            auth_sig = await self.account.wallet().sign(prepared.payment(amount))
            body = prepared.submission(amount, auth_sig, container_cid)
            outcome = await self._post(prepared, amount, body, {} if final else _ASYNC_HEADERS)
            if isinstance(outcome, Submitted):
                return attrs.evolve(outcome, on_chain=outcome.mined and await self.confirm_on_chain(prepared))
            quote = outcome.quote
        raise QuoteRefused(
            f"the price changed at each of {MAX_SUBMIT_ATTEMPTS} attempts to submit: retry", code="price_changed"
        )

    async def choose_bid(self, priced: PricedRequest) -> tuple[Bid, PublicKey]:
        """Choose the bid of an order. Return the bid, and the key to which the order is sealed."""
        if priced.rates is None:
            try:
                bid = market_bid(await self.candidates(priced), priced.provider)
            except NoProvider as error:
                raise NoProvider(f"{error.message}{await self._describe_priced_windows(priced)}") from None
        else:
            bid = Bid(priced.rates, priced.provider or OPEN_PROVIDER)
        if bid.box_key is not None:
            return bid, await self.account.verify_box_key(bid.designated, bid.box_key)
        if bid.designated == OPEN_PROVIDER:
            return bid, await self.account.escrow_key()
        return bid, await self.box_key(bid.designated)

    async def box_key(self, provider: int) -> PublicKey:
        """Read a provider's registered key, verify it and return it."""
        answer = await self.account.transport.get(f"/evm/providers/{provider}", Provider)
        if answer.box_key is None:
            raise NoProvider(f"provider {provider} has published no box key: choose another provider")
        if answer.provider_id != provider:
            raise OrderRefused(
                f"the coordinator returned provider {answer.provider_id} instead of {provider}", param="provider"
            )
        return await self.account.verify_box_key(provider, answer.box_key)

    async def check_quote(self, prepared: PreparedOrder, quote: Quote, max_amount: int | None) -> int:
        """Check a quote, and return the amount to authorise. Raises QuoteRefused, OverCeiling and ChainContradicts."""
        amount = check_amount(prepared, quote, await self.account.order_ceiling(max_amount))
        await self.account.market_verifier.check_fees(quote)
        return amount

    async def confirm_on_chain(self, prepared: PreparedOrder) -> bool:
        """Return True if a node shows the job with the signed terms.

        If no node shows the job yet, report this to the user and return False. Raises ChainContradicts.
        """
        chain = self.account.market_verifier.chain
        if chain is None:
            return False
        for attempt in range(_MAX_CHAIN_READS):
            if attempt:
                await self.account.transport.sleep(_CHAIN_READ_PAUSE_S)
            if await facts.is_posted(chain.new_snapshot(), prepared.sealed_order):
                return True
        self.account.market_verifier.report(f"no node has job {prepared.id} yet: check again with svc verify")
        return False

    async def _check_window(self, window: str, priced: PricedRequest) -> None:
        """Check the window before signing. Raises OrderRefused, which lists the allowed windows."""
        if not is_valid_window(window):
            warnings.warn(f"unknown window {window!r} is signed as 1h: use {WINDOW_FORMS}", OtherWindow, stacklevel=8)
        chain = self.account.market_verifier.chain
        registry = (await self.account.market()).job_registry
        if chain is None:
            reported = await self.account.reported_windows(priced.sla_secs)
            if reported is None or priced.sla_secs in reported:
                return
        elif await facts.is_window_allowed(chain.new_snapshot(), registry, priced.sla_secs):
            return
        try:
            (await Market(self.account).windows(window)).check(window, priced.sla_secs)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _describe_priced_windows(self, priced: PricedRequest) -> str:
        """Return the end of an error message: the requested window, and the windows that have asks for this model."""
        try:
            floors = await Market(self.account).floors(model=priced.model.svc.model_id, limit=None)
        except (ApiError, ConnectionFailed):  # the message is complete without the windows
            return ""
        priced_windows = sorted({floor.sla for floor in floors} - {priced.sla_secs})
        window_text = format_window(priced.sla_secs)
        return (
            f" of {window_text}; windows with asks: {', '.join(map(format_window, priced_windows))}"
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

    async def candidates(self, priced: PricedRequest) -> tuple[Candidate, ...]:
        """Return the live providers for a checked request, best first."""
        transport = self.account.transport
        answer = await transport.send(
            "POST", "/v1/jobs", json=candidates_request_body(priced), expected=_PAYMENT_REQUIRED
        )
        return read_record(answer, Candidates[int]).candidates

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
            expires_at=expiry_time(now, priced.sla_secs, account.settings.settlement_margin),
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
        """Post the order. After a lost answer, look for the job and then retry. After an error status, do not retry.

        Raises OutcomeUnknown if there was no answer and the look-up failed.
        """
        transport = self.account.transport
        attempt, answer_lost = 0, False
        while True:
            try:
                response = await transport.send_once("POST", "/v1/jobs", json=body, headers=headers)
            except ConnectionFailed as error:
                answer_lost = True
                submitted = await self._find_posted(prepared, amount)
                if submitted is not None:
                    return submitted
                if not error.retryable or attempt == transport.retries.max_retries:
                    raise _outcome_unknown_error(prepared, error) from None
                await transport.sleep(transport.retries.pause(attempt))
                attempt += 1
                continue
            if response.status_code == _STATUS_STORED:
                self.account.supports_progress = True
            outcome = _read_outcome(response, prepared, amount)
            if outcome is not None:
                return outcome
            api_error = read_error(response)
            failed = api_error.status >= _SERVER_ERROR_STATUS and not api_error.retryable
            may_be_posted = api_error.code == "DuplicateJob" or failed
            submitted = await self._wait_for_posted(prepared, amount) if may_be_posted else None
            if submitted is not None:
                return submitted
            raise _outcome_unknown_error(prepared, api_error) if answer_lost and api_error.retryable else api_error

    async def _find_posted(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        try:
            return await self._read_posted(prepared, amount)
        except (ApiError, ConnectionFailed) as error:
            raise _outcome_unknown_error(prepared, error) from None

    async def _wait_for_posted(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        """Return the job if an earlier attempt posted it. Retry the look-up, because the index may lag."""
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


def _outcome_unknown_error(prepared: PreparedOrder, error: ApiError | ConnectionFailed) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"unknown whether job {prepared.id} was posted ({error.message}): look for the job before you order again"
    )


def _read_outcome(response: httpx.Response, prepared: PreparedOrder, amount: int) -> Submitted | Quoted | None:
    """Return the outcome, or None if the answer is an error."""
    if response.status_code == 201:
        posted = read_record(response, Posted)
        return Submitted(prepared.id, amount, posted.task_cid, posted.tx_hash)
    if response.status_code == _STATUS_STORED:
        return Submitted(prepared.id, amount, None, None, mined=False, rests_on="stored")
    if response.status_code == 409 and "quote" in read_record(response, dict[str, msgspec.Raw]):
        return read_record(response, Quoted)
    if response.status_code == 504:
        error = read_error(response)
        if error.type == "receipt_timeout":
            return Submitted(prepared.id, amount, None, error.code, mined=False, rests_on="broadcast")
    return None
