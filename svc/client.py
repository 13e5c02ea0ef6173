"""Client that buys sealed jobs, with one call or step by step. Works on asyncio and on trio.

    async with Client() as client:
        result = await client.run("demo/text-small", "Write a haiku about seals.", window="async")
        print(result.output, result.cost)

Missing options come from the environment or a profile (see `svc.settings`). `SyncClient` has the same methods without
`await`.
"""

import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from common.receipt_tab import build_tab_member
from common.tracing import spans
from svc.account import Account
from svc.batches.batches import Batches
from svc.batches.preparation import Preparation
from svc.batches.results import BatchResults
from svc.chain.node import Chain
from svc.client_options import ClientOptions
from svc.core.bids import Rate
from svc.core.clock import ServerClock
from svc.core.escrow_trust import EscrowTrust
from svc.core.known_market import market_url
from svc.core.model_input import ModelInput
from svc.core.order_request import OrderRequest
from svc.core.orders import PreparedOrder
from svc.core.retries import RetryPolicy
from svc.core.windows import DEFAULT_WINDOW
from svc.error_conversion import raises_svc_errors
from svc.errors import OrderRefused
from svc.files import Files
from svc.jobs import Jobs, OnJobChange
from svc.known_markets import KnownMarkets
from svc.market import Market, Models
from svc.market_verifier import MarketRemembered, MarketVerifier
from svc.orders import Orders, Submitted
from svc.progress import ProvisionalResults
from svc.receipts import Receipts
from svc.records import Cancelled, Candidate, Checked, Deployment, EscrowKey, Job, Quoted, Readiness, Session
from svc.results import Result, Results, read_job_id
from svc.settings import Settings
from svc.signers import Signer
from svc.tabs.files import TabFiles, tabs_folder
from svc.tabs.tabs import Tabs
from svc.verification import Verification, VerifiedJob
from svc.webhooks import Webhooks
from svc.wire.checked_reads import CheckedReader
from svc.wire.connections import open_client
from svc.wire.gateways import Gateways
from svc.wire.json_rpc import Node
from svc.wire.transport import REQUEST_TIMEOUT_S, Transport, read_record


@raises_svc_errors
class Client:
    """One wallet at one coordinator. Use it as an async context manager, or call `aclose()`.

    The attributes `models`, `jobs`, `files`, `batches`, `webhooks` and `market` call the coordinator's routes, and
    `tabs` opens tabs. The methods of this class are the steps of one job. `orders` has smaller steps, for applications
    that cache models, candidates and charges. `market_verifier` checks the coordinator's answers against the address
    book, known markets and nodes of the chain.
    """

    models: Models
    jobs: Jobs
    files: Files
    batches: Batches
    market: Market
    orders: Orders
    results: Results
    tabs: Tabs
    webhooks: Webhooks

    def __init__(self, base_url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        """Create a client with the options of `ClientOptions`. Raises OrderRefused for an invalid setting."""
        self.settings = _resolve_settings(base_url, options)
        callers_pool = options.get("http")
        pool = callers_pool or open_client(base_url=self.settings.base_url, timeout=REQUEST_TIMEOUT_S)
        self._own_pool = pool if callers_pool is None else None
        signer = options.get("signer") or self.settings.signer
        trust = EscrowTrust(
            pinned_keys=tuple(options.get("escrow_keys", ())),
            allow_mock=options.get("allow_mock_escrow", False),
            allow_debug=options.get("allow_debug_escrow", False),
        )
        market_verifier = MarketVerifier(
            url=market_url(self.settings.base_url),
            address_book=self.settings.addresses,
            known_markets=_known_markets(options, self.settings),
            escrow=trust,
            chain=Chain([Node(url, pool) for url in self.settings.rpc_urls]) if self.settings.rpc_urls else None,
            require_known=options.get("require_known_market", False),
            report=options.get("on_first_use", _warn_of_first_use),
        )
        self.market_verifier = market_verifier
        self._clock = ServerClock()
        transport = Transport(pool, self._clock, options.get("retries", RetryPolicy()))
        gateways = CheckedReader(Gateways(pool, self.settings.gateways))
        account = Account(self.settings, transport, gateways, signer, market_verifier)
        self._account = account
        self.models, self.jobs = Models(account), Jobs(account)
        self.files, self.market = Files(account), Market(account)
        self.webhooks = Webhooks(account)
        self.orders, self.results = Orders(account, self.files), Results(account)
        self._provisional_results = ProvisionalResults(account, self.jobs, self.orders, self.results)
        batch_results = BatchResults(self.files, self.jobs, self.results)
        self.batches = Batches(account, self.files, Preparation(account, self.orders), batch_results)
        tab_files = TabFiles(tabs_folder(options.get("environment", os.environ)))
        self.tabs = Tabs(account, self.orders, self.jobs, self.results, tab_files)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._own_pool is not None:
            await self._own_pool.aclose()

    @property
    def signer(self) -> Signer | None:
        """Signer of the wallet, or None for a client without a wallet."""
        return self._account.signer

    @property
    def address(self) -> str:
        """Address of the wallet in hex. Raises OrderRefused for a client without a wallet."""
        return "0x" + self._account.wallet().address.hex()

    async def receipt(self, job_id: str, *, transcript: bool = False) -> bytes:
        """Return the receipt of an ended job, a file that anyone can check. Needs a node (`rpc_url`).

        With `transcript`, the receipt of a tab contains the tab's answers. Such a receipt proves which units were
        allowed, delivered and charged.
        """
        chain = self.market_verifier.chain
        if chain is None:
            message = "a receipt is built from the chain, and no node is set: set rpc_url=, SVC_RPC_URL or --rpc-url"
            raise OrderRefused(message, param="SVC_RPC_URL")
        row, market = await self.jobs.row(job_id), await self._account.market()
        member = None
        if transcript:
            sealed = await self.results.read_sealed(await self.jobs.get(job_id))
            member = build_tab_member(sealed, await self._account.result_keys())
        receipts = Receipts(chain.new_snapshot(), market.receipt_market)
        return await receipts.build_receipt(read_job_id(row.job_id), row.posted_block, member)

    async def run(
        self,
        model: str,
        input: ModelInput,
        *,
        window: str = DEFAULT_WINDOW,
        provider: int | None = None,
        rate_in: Rate | None = None,
        rate_out: Rate | None = None,
        units_out: int | None = None,
        endpoint: str | None = None,
        custom_id: str | None = None,
        max_amount: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the job continues, and may be waited for again
        on_change: OnJobChange | None = None,
        final: bool = False,
    ) -> Result:
        """Buy one result: probe, prepare, quote, submit, wait and open.

        `window`: `async` (1 h), `batch` (24 h, the default), or `<n>h`, `<n>m`, `<n>s`. Without rates, the order takes
        the best ask; `provider` names a provider. With rates and no provider, the order is open to all providers and
        sealed to the escrow. Rates are base units of the payment token per 10^6 units. `max_amount` limits the
        authorised amount, charges included; it defaults to the client's `max_amount`, or one token.

        The result is returned as soon as the coordinator has stored the settle, before the settle is in a block. The
        result's `provisional` is then True, and its method `settled` waits for the chain. With `final`, the result is
        returned once the settle is in a block.

        Raises SvcError. The error is JobFailed if the job ended without a result.
        """
        self.require_gateway()
        with spans.span("request", model=model):
            prepared = await self.prepare(
                model,
                input,
                window=window,
                provider=provider,
                rate_in=rate_in,
                rate_out=rate_out,
                units_out=units_out,
                endpoint=endpoint,
                custom_id=custom_id,
            )
            await self.submit(prepared, max_amount=max_amount, final=final)
            found: Result | Job
            if final:
                found = await self.wait(prepared.id, timeout=timeout, on_change=on_change)
            else:
                found = await self.first_result(prepared, timeout=timeout, on_change=on_change)
            return found if isinstance(found, Result) else await self.open(found)

    def require_gateway(self) -> None:
        """Raise OrderRefused (`reads_disabled`) if no gateway is set, because results are then unreadable.

        Call this before paying for a result.
        """
        if not self.settings.gateways:
            message = "no gateway is set, so results cannot be read: set SVC_PIN_GATEWAY, or order with `submit`"
            raise OrderRefused(message, code="reads_disabled", param="SVC_PIN_GATEWAY")

    async def probe(
        self,
        model: str,
        input: ModelInput,
        *,
        window: str = DEFAULT_WINDOW,
        provider: int | None = None,
        units_out: int | None = None,
        endpoint: str | None = None,
    ) -> tuple[Candidate, ...]:
        """Return the live providers that would accept this request, with their rates, best first."""
        return await self.orders.probe(
            OrderRequest(model, input, window, provider, units_out=units_out, endpoint=endpoint)
        )

    async def prepare(
        self,
        model: str,
        input: ModelInput,
        *,
        window: str = DEFAULT_WINDOW,
        provider: int | None = None,
        rate_in: Rate | None = None,
        rate_out: Rate | None = None,
        units_out: int | None = None,
        endpoint: str | None = None,
        custom_id: str | None = None,
    ) -> PreparedOrder:
        """Choose a provider, seal the payload and sign the order. No payment is signed yet.

        The `id` of the order is the id of its job. A parameter that the model's schema does not list is sent, and gives
        the warning UnlistedParameter.
        """
        return await self.orders.prepare(
            OrderRequest(model, input, window, provider, rate_in, rate_out, units_out, endpoint, custom_id)
        )

    async def quote(self, prepared: PreparedOrder) -> Quoted:
        """Return the price of an order, and the live providers that would accept the order."""
        return await self.orders.quote(prepared)

    async def check(self, prepared: PreparedOrder) -> Checked:
        """Run every check of a post, and return the failures. Nothing is posted, and no payment is signed."""
        return await self.orders.check(prepared)

    async def check_quote(self, prepared: PreparedOrder, quoted: Quoted, *, max_amount: int | None = None) -> int:
        """Return the amount that `submit` would authorise. Raises QuoteRefused, OverCeiling and ChainContradicts."""
        return await self.orders.check_quote(prepared, quoted.quote, max_amount)

    async def submit(
        self,
        prepared: PreparedOrder,
        quoted: Quoted | None = None,
        *,
        max_amount: int | None = None,
        final: bool = False,
    ) -> Submitted:
        """Sign the payment and post the job. Repeating the call with the same order makes no second job.

        Returns once the coordinator has stored the order, or with `final`, once the post is mined. `rests_on` of the
        return value is `stored`, `broadcast` or `block`.
        """
        return await self.orders.submit(prepared, quoted, max_amount, final=final)

    async def first_result(
        self,
        prepared: PreparedOrder,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the job continues, and may be waited for again
        on_change: OnJobChange | None = None,
    ) -> Result | Job:
        """Return a provisional result of a submitted order, or the job if it ended first. Pass the job to `open`.

        Calls `on_change` with the expected job at each new status. Raises WaitTimedOut, and PostRefused if the stored
        order could not be posted.
        """
        return await self._provisional_results.first_result(prepared, timeout=timeout, on_change=on_change)

    async def settled(self, result: Result, *, timeout: float | None = None) -> Result:  # noqa: ASYNC109
        """Wait until the chain has settled a provisional result. Raises ResultTakenBack."""
        return await result.settled(timeout)

    async def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the job continues, and may be waited for again
        on_change: OnJobChange | None = None,
    ) -> Job:
        """Wait until a job has ended, and return the job."""
        return await self.jobs.wait(job_id, timeout=timeout, on_change=on_change)

    async def open(self, job: Job | str) -> Result:
        """Read and open the result of a settled job."""
        return await self.results.open(job if isinstance(job, Job) else await self.jobs.get(job))

    async def save(self, job: Job | str, path: Path) -> int:
        """Write a result of any size to a file. Return the file's size in bytes."""
        return await self.results.save(job if isinstance(job, Job) else await self.jobs.get(job), path)

    async def verify(self, job_id: str) -> VerifiedJob:
        """Return the facts of a job, each with the source that verifies the fact. Raises ChainContradicts."""
        return await Verification(self._account, self.jobs).verify(job_id)

    async def cancel(self, job_id: str) -> Cancelled:
        """Cancel a job that no provider has claimed yet."""
        return await self.jobs.cancel(job_id)

    async def chain(self) -> Deployment:
        """Return the verified deployment. Raises MarketChanged if the address book or known market differs."""
        return await self._account.deployment()

    async def reported_deployment(self) -> Deployment:
        """Return the deployment that the coordinator reports, unverified. Never sign an order for this deployment."""
        return await self._account.transport.get("/evm/chain", Deployment)

    async def readiness(self) -> Readiness:
        answer = await self._account.transport.send_once("GET", "/readyz")
        return read_record(answer, Readiness)

    async def escrow(self) -> EscrowKey:
        """Return the verified key of the escrow.

        Raises EscrowUntrusted, and InvalidRequest (`escrow_unavailable`) if the coordinator has no escrow.
        """
        return await self._account.escrow()

    async def session(self) -> Session:
        """Return this wallet's session, creating it if needed."""
        return await self._account.sessions().current()

    def now(self) -> int:
        """Return the coordinator's time in Unix seconds."""
        return self._account.transport.clock.now()

    def clock_skew(self) -> float:
        """Return how many seconds the coordinator's clock was ahead of the local clock at the last answer."""
        return self._clock.skew_s


def _resolve_settings(base_url: str | None, options: ClientOptions) -> Settings:
    pool = options.get("http")
    if pool is not None and str(pool.base_url):
        base_url = str(pool.base_url)  # the pool sends all requests to this address
    return Settings.resolve(
        base_url=base_url,
        gateways=options.get("gateways"),
        wallet_key=options.get("wallet_key"),
        cipher_key=options.get("cipher_key"),
        settlement_margin=options.get("settlement_margin"),
        addresses=options.get("addresses"),
        rpc_url=options.get("rpc_url"),
        max_amount=options.get("max_amount"),
        max_batch_amount=options.get("max_batch_amount"),
        tab_direct=options.get("tab_direct", "public"),
        insecure_http=options.get("insecure_http"),
        profile=options.get("profile"),
        without_wallet=options.get("without_wallet", False) or options.get("signer") is not None,
        environment=options.get("environment"),
    )


def _known_markets(options: ClientOptions, settings: Settings) -> KnownMarkets:
    known = options.get("known_markets", settings.known_markets)
    return known if isinstance(known, KnownMarkets) else KnownMarkets(Path(known) if known else None)


def _warn_of_first_use(fact: str) -> None:
    warnings.warn(fact, MarketRemembered, stacklevel=2)
