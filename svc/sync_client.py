"""Client without `await`: the same methods with the same arguments.

    with SyncClient() as client:
        print(client.run("demo/text-small", "Write a haiku about seals.", window="async").output)

The client runs an event loop in a separate thread. Its methods may be called from any thread.
"""

import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from common.quotes import FeeTerms
from svc.batches.batches import Batches
from svc.batches.results import BatchResult
from svc.client import Client
from svc.client_options import ClientOptions
from svc.core.model_input import ModelInput
from svc.files import Files
from svc.jobs import Jobs
from svc.market import Market, Models
from svc.records import Batch
from svc.signers import Signer
from svc.tabs.outcome import TabOutcome
from svc.tabs.tab import Tab, TabStream
from svc.tabs.tabs import TabOptions, Tabs
from svc.webhooks import Webhooks

P = ParamSpec("P")
T = TypeVar("T")


def _close_open_client(stack: ExitStack) -> None:
    """Close a client that the program left open. The SystemExit cancels calls of other threads."""
    with suppress(BaseException):
        stack.__exit__(SystemExit, SystemExit(), None)


class _SyncObject(Protocol):
    """Object with an asynchronous counterpart and the portal to the event loop's thread."""

    @property
    def _inner(self) -> Any: ...
    @property
    def _portal(self) -> BlockingPortal: ...


def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs `method` in the event loop's thread, and waits for the result."""

    @wraps(method)
    def call(sync_object: _SyncObject, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def run() -> T:
            return await method(sync_object._inner, *args, **kwargs)

        return sync_object._portal.call(run)

    return call


class _SyncRoutes:
    """Base of classes with the methods of an asynchronous object, without `await`."""

    def __init__(self, inner: object, portal: BlockingPortal) -> None:
        self._inner = inner
        self._portal = portal


class SyncModels(_SyncRoutes):
    list = blocking(Models.list)
    get = blocking(Models.get)


class SyncMarket(_SyncRoutes):
    asks = blocking(Market.asks)
    floors = blocking(Market.floors)
    windows = blocking(Market.windows)
    providers = blocking(Market.providers)
    provider = blocking(Market.provider)
    allowlist = blocking(Market.allowlist)


class SyncJobs(_SyncRoutes):
    get = blocking(Jobs.get)
    wait = blocking(Jobs.wait)
    progress = blocking(Jobs.progress)
    cancel = blocking(Jobs.cancel)
    book = blocking(Jobs.book)
    mine = blocking(Jobs.mine)
    row = blocking(Jobs.row)
    why = blocking(Jobs.why)
    summary = blocking(Jobs.summary)


class SyncFiles(_SyncRoutes):
    upload = blocking(Files.upload)
    get = blocking(Files.get)
    content = blocking(Files.content)
    save = blocking(Files.save)


class SyncWebhooks(_SyncRoutes):
    add = blocking(Webhooks.add)
    list = blocking(Webhooks.list)
    remove = blocking(Webhooks.remove)
    test = blocking(Webhooks.test)


class SyncBatches(_SyncRoutes):
    plan = blocking(Batches.plan)
    prepare = blocking(Batches.prepare)
    price = blocking(Batches.price)
    create = blocking(Batches.create)
    get = blocking(Batches.get)
    list = blocking(Batches.list)
    cancel = blocking(Batches.cancel)
    wait = blocking(Batches.wait)

    def results(
        self,
        batch: Batch | str,
        *,
        custom_ids: Mapping[int, str] | None = None,
        fee_terms: FeeTerms | None = None,
    ) -> Iterator[BatchResult]:
        """Yield the same results as `Batches.results`."""
        inner: Batches = self._inner  # type: ignore[assignment] # always a Batches
        results = inner.results(batch, custom_ids=custom_ids, fee_terms=fee_terms)

        async def next_result() -> BatchResult | None:
            return await anext(results, None)

        try:
            while (result := self._portal.call(next_result)) is not None:
                yield result
        finally:
            self._portal.call(results.aclose)


class SyncTabStream(_SyncRoutes):
    """Answer to one request. Iterate over its chunks, or wait for the whole answer with `answer()`."""

    answer = blocking(TabStream.answer)

    @property
    def id(self) -> int:
        inner: TabStream = self._inner  # type: ignore[assignment] # always a TabStream
        return inner.id

    def __iter__(self) -> Iterator[dict[str, object]]:
        inner: Any = self._inner
        chunks = aiter(inner)

        async def next_chunk() -> dict[str, object] | None:
            return await anext(chunks, None)

        try:
            while (chunk := self._portal.call(next_chunk)) is not None:
                yield chunk
        finally:
            self._portal.call(chunks.aclose)


class SyncTab(_SyncRoutes):
    """Open tab, see `svc.tabs.tab.Tab`."""

    def keep(self) -> None:
        """Do not close the tab at the end of the block, so that `resume` can continue it."""
        self._tab.keep()

    def request(self, input: ModelInput) -> SyncTabStream:
        """Send a request, and return the stream of its answer. The answer arrives in the background."""
        return SyncTabStream(self._portal.call(self._tab.request, input), self._portal)

    @property
    def id(self) -> str:
        return self._tab.id

    @property
    def provider(self) -> int:
        return self._tab.provider

    @property
    def outcome(self) -> TabOutcome | None:
        """Outcome of the tab, available after the `with` block."""
        return self._tab.outcome

    @property
    def _tab(self) -> Tab:
        return self._inner  # type: ignore[return-value] # always a Tab


class SyncTabs(_SyncRoutes):
    list = blocking(Tabs.list)
    close = blocking(Tabs.close)
    faulty_providers = blocking(Tabs.faulty_providers)
    forgive = blocking(Tabs.forgive)

    @contextmanager
    def open(self, model: str, **terms: Unpack[TabOptions]) -> Iterator[SyncTab]:
        """Open a tab with the arguments of `Tabs.open`."""
        with self._portal.wrap_async_context_manager(self._tabs.open(model, **terms)) as tab:
            yield SyncTab(tab, self._portal)

    @contextmanager
    def resume(self, job_id: str) -> Iterator[SyncTab]:
        """Continue an open tab with the arguments of `Tabs.resume`."""
        with self._portal.wrap_async_context_manager(self._tabs.resume(job_id)) as tab:
            yield SyncTab(tab, self._portal)

    @property
    def _tabs(self) -> Tabs:
        return self._inner  # type: ignore[return-value] # always Tabs


class SyncClient:
    """Client with the options of `Client`. Use it as a context manager, or call `close()`.

    One call buys a result; `max_amount` limits its price, in base units of the payment token:

        >>> result = client.run("demo/text-small", "sealed jobs", window="async", max_amount=100_000)
        >>> result.job.status, result.cost <= 100_000
        ('completed', True)

    Step by step, with a chosen provider and rates:

        >>> best = client.probe("demo/text-small", "sealed jobs", window="async")[0]
        >>> order = client.prepare(
        ...     "demo/text-small",
        ...     {"input": "sealed jobs", "max_output_tokens": 64},
        ...     window="async",
        ...     provider=best.provider_id,
        ...     rate_in=best.rate_in,
        ...     rate_out=best.rate_out,
        ... )
        >>> quoted = client.quote(order)
        >>> posted = client.submit(order, quoted, max_amount=quoted.quote.amount)
        >>> posted.job_id == order.id
        True
        >>> job = client.wait(posted.job_id, timeout=60)
        >>> client.open(job).job_id == order.id
        True

    Many jobs, each sealed and paid separately:

        >>> lines = [{"custom_id": f"page {n}", "body": {"model": "demo/text-small", "input": f"{n}"}} for n in (1, 2)]
        >>> prepared = client.batches.prepare(lines, window="1h")
        >>> batch = client.batches.create(prepared)
        >>> ended = client.batches.wait(batch.id, every=0.2)
        >>> [one.custom_id for one in client.batches.results(ended, custom_ids=prepared.custom_ids)]
        ['page 1', 'page 2']
    """

    models: SyncModels
    jobs: SyncJobs
    files: SyncFiles
    batches: SyncBatches
    market: SyncMarket
    webhooks: SyncWebhooks
    tabs: SyncTabs

    def __init__(self, base_url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._inner = Client(base_url, **options)
        self._stack = ExitStack()
        # Close the client at exit or when its last reference is dropped, before Python ends the event loop's thread.
        weakref.finalize(self, _close_open_client, self._stack)
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stack.enter_context(self._portal.wrap_async_context_manager(self._inner))
        self.models = SyncModels(self._inner.models, self._portal)
        self.jobs = SyncJobs(self._inner.jobs, self._portal)
        self.files = SyncFiles(self._inner.files, self._portal)
        self.batches = SyncBatches(self._inner.batches, self._portal)
        self.market = SyncMarket(self._inner.market, self._portal)
        self.webhooks = SyncWebhooks(self._inner.webhooks, self._portal)
        self.tabs = SyncTabs(self._inner.tabs, self._portal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Pass the error on, so that it cancels the calls of other threads. Otherwise Ctrl-C would not end the program.
        self._stack.__exit__(kind, error, trace)

    def close(self) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def signer(self) -> Signer | None:
        return self._inner.signer

    def now(self) -> int:
        return self._inner.now()

    def clock_skew(self) -> float:
        return self._inner.clock_skew()

    def require_gateway(self) -> None:
        self._inner.require_gateway()

    run = blocking(Client.run)
    probe = blocking(Client.probe)
    prepare = blocking(Client.prepare)
    quote = blocking(Client.quote)
    check = blocking(Client.check)
    check_quote = blocking(Client.check_quote)
    submit = blocking(Client.submit)
    first_result = blocking(Client.first_result)
    settled = blocking(Client.settled)
    wait = blocking(Client.wait)
    open = blocking(Client.open)
    save = blocking(Client.save)
    cancel = blocking(Client.cancel)
    verify = blocking(Client.verify)
    receipt = blocking(Client.receipt)
    chain = blocking(Client.chain)
    reported_deployment = blocking(Client.reported_deployment)
    readiness = blocking(Client.readiness)
    escrow = blocking(Client.escrow)
    session = blocking(Client.session)
