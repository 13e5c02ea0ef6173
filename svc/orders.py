"""An order's way to the coordinator: probe, pin, seal, sign, quote, pay, submit."""

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
from svc.core.order_request import OrderRequest, Shaped, probe_body, shape, shape_probe
from svc.core.orders import OrderTerms, PreparedOrder, SealedOrder, seal_order
from svc.core.quote_check import MOST_ATTEMPTS, checked_amount, fee_terms
from svc.core.windows import WINDOW_FORMS, expiry, is_window, window_words
from svc.error_conversion import raises_svc_errors
from svc.errors import ApiError, ConnectionFailed, NoProvider, NotFound, OrderRefused, OutcomeUnknown, QuoteRefused
from svc.files import Files
from svc.market import Market
from svc.records import Candidate, Checked, Job, Model, Posted, Provider, Quote, Quoted
from svc.wire.transport import error_of, read

_PAYMENT_REQUIRED: Final = frozenset({402})
_SERVER_FAULT: Final = 500
_ASYNC: Final = {"prefer": "respond-async"}  # answered as soon as the order is stored, by those who know it
_STORED: Final = 202
_LOOKS: Final = 8  # at the chain, after an order: a node may be some blocks behind
_LOOK_PAUSE: Final = 0.75


class UnlistedParameter(UserWarning):
    """A parameter that the model's schema does not list was sent all the same."""


class OtherWindow(UserWarning):
    """A window of a form that is not known is signed as an hour."""


@attrs.frozen(slots=True)
class Submitted:
    """`rests_on` says how far the order is: `stored`, and the coordinator will send it; `broadcast`, and not mined
    within a minute; in a `block`. `mined` is True for the last alone: until then the chain may refuse it, which `wait`
    tells.

    `tx_hash` and `task_cid` are None where the answer was lost and the job was read back instead. `on_chain`: a node
    showed the job with the terms that were signed; False where none was asked, or it had not seen the job yet.
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
    account: Account
    files: Files

    async def probe(self, request: OrderRequest) -> tuple[Candidate, ...]:
        """Live providers for this request, the best first."""
        return await self._probe(await self._shaped(request, shape_probe))

    async def prepare(self, request: OrderRequest) -> PreparedOrder:
        """Bid, sealed and signed; nothing is owed yet."""
        shaped = await self._shaped(request, shape)
        await self._check_window(request.window, shaped)
        for name in shaped.unlisted:
            message = f"{shaped.model.id} does not list the parameter {name!r}; it is sent as it is"
            warnings.warn(message, UnlistedParameter, stacklevel=7)
        bid, recipient = await self.bid(shaped)
        return await self._signed(shaped, bid, recipient)

    async def prepare_for(self, request: OrderRequest, model: Model, bid: Bid, recipient: PublicKey) -> PreparedOrder:
        """As `prepare`, with everything known before: nobody is asked anything, and nothing is warned of."""
        try:
            shaped = shape(request, model)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        return await self._signed(shaped, bid, recipient)

    async def _signed(self, shaped: Shaped, bid: Bid, recipient: PublicKey) -> PreparedOrder:
        sealed = await self._seal(shaped, bid, recipient)
        signature = await self.account.wallet().sign(sealed.to_sign())
        return PreparedOrder(sealed, signature, shaped.unlisted)

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
        """Pay and post. A quote that changed is paid anew, in three attempts at most. `final`: wait for its block."""
        quote = (quoted or await self.quote(prepared)).quote
        await self.payable(prepared, quote, max_amount)  # before anything is uploaded
        sealed = prepared.sealed_order.sealed
        container_cid = None
        if not sealed.fits_inline:
            container_cid = (await self.files.upload(sealed.container, "input", filename="container")).svc.cid
        for _ in range(MOST_ATTEMPTS):
            amount = await self.payable(prepared, quote, max_amount)
            self.account.charges = fee_terms(quote)
            auth_sig = await self.account.wallet().sign(prepared.payment(amount))
            body = prepared.submission(amount, auth_sig, container_cid)
            outcome = await self._post(prepared, amount, body, {} if final else _ASYNC)
            if isinstance(outcome, Submitted):
                return attrs.evolve(outcome, on_chain=outcome.mined and await self.require_on_chain(prepared))
            quote = outcome.quote
        raise QuoteRefused("the price changed under every attempt", code="price_changed")

    async def bid(self, shaped: Shaped) -> tuple[Bid, PublicKey]:
        """What the order offers and to whom it is sealed."""
        if shaped.rates is None:
            try:
                bid = market_bid(await self._probe(shaped), shaped.provider)
            except NoProvider as nobody:
                raise NoProvider(f"{nobody.message}{await self._asked_windows(shaped)}") from None
        else:
            bid = Bid(shaped.rates, shaped.provider or OPEN)
        if bid.box_key is not None:
            return bid, await self.account.box_key(bid.designated, bid.box_key)
        if bid.designated == OPEN:
            return bid, await self.account.escrow_key()
        return bid, await self.box_key(bid.designated)

    async def box_key(self, provider: int) -> PublicKey:
        """A provider's registered key."""
        answer = await self.account.transport.get(f"/evm/providers/{provider}", Provider)
        if answer.box_key is None:
            raise NoProvider(f"provider {provider} has published no key to seal to")
        if answer.provider_id != provider:
            raise OrderRefused(f"asked for provider {provider}, told of {answer.provider_id}", param="provider")
        return await self.account.box_key(provider, answer.box_key)

    async def payable(self, prepared: PreparedOrder, quote: Quote, max_amount: int | None) -> int:
        """The amount that may be signed for. Raises QuoteRefused, OverCeiling, ChainContradicts."""
        amount = checked_amount(prepared, quote, await self.account.order_ceiling(max_amount))
        await self.account.vouching.fees(quote)
        return amount

    async def require_on_chain(self, prepared: PreparedOrder) -> bool:
        """True where a node shows the job as signed; one that none shows yet is told. Raises ChainContradicts."""
        chain = self.account.vouching.chain
        if chain is None:
            return False
        for attempt in range(_LOOKS):
            if attempt:
                await self.account.transport.sleep(_LOOK_PAUSE)
            if await facts.is_posted(chain.later(), prepared.sealed_order):
                return True
        self.account.vouching.tell(f"no node shows job {prepared.id} yet: svc verify looks again")
        return False

    async def _check_window(self, window: str, shaped: Shaped) -> None:
        """Before anything is signed. Raises OrderRefused that names the windows that the network takes."""
        if not is_window(window):
            warnings.warn(
                f"the window {window!r} is none of {WINDOW_FORMS}: it is signed as 1h", OtherWindow, stacklevel=8
            )
        chain = self.account.vouching.chain
        registry = (await self.account.market()).job_registry
        if chain is None:
            told = await self.account.told_windows(shaped.sla_secs)
            if told is None or shaped.sla_secs in told:
                return
        elif await facts.window_allowed(chain.later(), registry, shaped.sla_secs):
            return
        try:
            (await Market(self.account).windows(window)).check(window, shaped.sla_secs)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _asked_windows(self, shaped: Shaped) -> str:
        """The windows that the model is asked a price for, in words, where nobody takes the one that was wanted."""
        try:
            floors = await Market(self.account).floors(model=shaped.model.svc.model_id, limit=None)
        except (ApiError, ConnectionFailed):  # the refusal stands without
            return ""
        asked = sorted({floor.sla for floor in floors} - {shaped.sla_secs})
        wanted = window_words(shaped.sla_secs)
        return f" of {wanted}; prices are asked for {', '.join(map(window_words, asked))}" if asked else f" of {wanted}"

    async def _shaped(self, request: OrderRequest, shaping: Callable[[OrderRequest, Model], Shaped]) -> Shaped:
        model = await self.account.model(request.model)
        try:
            return shaping(request, model)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _probe(self, shaped: Shaped) -> tuple[Candidate, ...]:
        transport = self.account.transport
        answer = await transport.send("POST", "/v1/jobs", json=probe_body(shaped), expected=_PAYMENT_REQUIRED)
        return read(answer, Candidates[int]).candidates

    async def _seal(self, shaped: Shaped, bid: Bid, recipient: PublicKey) -> SealedOrder:
        account = self.account
        market, keys = await account.market(), await account.result_keys()
        now = account.transport.clock.now()
        terms = OrderTerms(
            model=shaped.model.id,
            model_id=shaped.model.svc.model_id,
            modality=shaped.modality,
            sla_secs=shaped.sla_secs,
            units=shaped.units,
            rates=bid.rates,
            designated=bid.designated,
            expires_at=expiry(now, shaped.sla_secs, account.settings.settlement_margin),
        )
        owner = account.wallet().address
        envelope = Envelope(owner, shaped.model.id, shaped.input, keys[0].public, shaped.custom_id)
        try:  # in a thread: a payload may have many megabytes
            return await to_thread.run_sync(seal_order, market, recipient, envelope, terms)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None

    async def _post(
        self, prepared: PreparedOrder, amount: int, body: dict[str, Any], preferring: dict[str, str]
    ) -> Submitted | Quoted:
        """Never made again on an error status; where no answer came, the job is read back first.

        Raises OutcomeUnknown once no answer came and it could not be found out what became of it.
        """
        transport = self.account.transport
        attempt, lost = 0, False
        while True:
            try:
                response = await transport.once("POST", "/v1/jobs", json=body, headers=preferring)
            except ConnectionFailed as failed:
                lost = True
                found = await self._look_back(prepared, amount)
                if found is not None:
                    return found
                if not failed.retryable or attempt == transport.retries.most:
                    raise _unknown(prepared, failed) from None
                await transport.sleep(transport.retries.pause(attempt))
                attempt += 1
                continue
            if response.status_code == _STORED:
                self.account.tells_progress = True
            outcome = _outcome(response, prepared, amount)
            if outcome is not None:
                return outcome
            error = error_of(response)
            made = error.code == "DuplicateJob" or (error.status >= _SERVER_FAULT and not error.retryable)
            found = await self._made_before(prepared, amount) if made else None
            if found is not None:
                return found
            raise _unknown(prepared, error) if lost and error.retryable else error

    async def _look_back(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        try:
            return await self._read_back(prepared, amount)
        except (ApiError, ConnectionFailed) as failed:
            raise _unknown(prepared, failed) from None

    async def _made_before(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        """Only this order makes this job: an earlier attempt counted, though its answer was lost.

        The chain has the job, and the index follows the chain: a moment later it is there to be read.
        """
        transport = self.account.transport
        for attempt in range(transport.retries.most):
            found = await self._read_back(prepared, amount)
            if found is not None:
                return found
            await transport.sleep(transport.retries.pause(attempt))
        return await self._read_back(prepared, amount)

    async def _read_back(self, prepared: PreparedOrder, amount: int) -> Submitted | None:
        try:
            job = await self.account.transport.get(f"/v1/jobs/{prepared.id}", Job)
        except NotFound:
            return None
        return Submitted(prepared.id, amount, job.svc.task_cid, None)


def _unknown(prepared: PreparedOrder, failed: ApiError | ConnectionFailed) -> OutcomeUnknown:
    return OutcomeUnknown(f"no word of whether job {prepared.id} was posted ({failed.message})")


def _outcome(response: httpx.Response, prepared: PreparedOrder, amount: int) -> Submitted | Quoted | None:
    """None when the answer is an error."""
    if response.status_code == 201:
        posted = read(response, Posted)
        return Submitted(prepared.id, amount, posted.task_cid, posted.tx_hash)
    if response.status_code == _STORED:
        return Submitted(prepared.id, amount, None, None, mined=False, rests_on="stored")
    if response.status_code == 409 and "quote" in read(response, dict[str, msgspec.Raw]):
        return read(response, Quoted)
    if response.status_code == 504:
        error = error_of(response)
        if error.type == "receipt_timeout":
            return Submitted(prepared.id, amount, None, error.code, mined=False, rests_on="broadcast")
    return None
