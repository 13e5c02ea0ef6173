"""`svcd check`: check everything that `svcd run` needs, and show the results in a table."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import httpx
import trio

from common.address_book import AddressBook
from common.domains import Domains
from common.refusal import Refused
from common.scalars import hex_of
from common.strict_json import parse
from svc.wire.connections import open_client
from svc.wire.gateways import Gateways
from svc.wire.transport import ApiError, ConnectionFailed, Transport
from svcd.backends.build import open_backend
from svcd.backends.load import open_load
from svcd.backends.load_settings import JsonSettings, PrometheusSettings
from svcd.backends.settings import EchoSettings, ExecSettings, HttpSettings, OpenAISettings
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig, ModelConfig
from svcd.coordinator.chain import ChainReader, Registered
from svcd.coordinator.client import Coordinator, ProviderRecord, read_deployment, transport_of
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, sessions_of, sign_in
from svcd.journal.journal import is_in_use
from svcd.operator.findings import Checked
from svcd.operator.market_comparison import kind_of, prices_beside
from svcd.payload.gateway import PayloadGateways
from svcd.stages.guard import POLLED_RECENTLY
from svcd.stages.reputation_risks import allowed_windows, rival, wrong_clock, wrong_key, wrong_name, wrong_windows

_CLOCK_TOLERANCE: Final = 60.0  # of the ±600 seconds within which signatures count
_PATIENCE: Final = 15.0
_BELIEVED: Final = (
    "rpc_url is not set: claims, payments and terms are not verified on the chain, only reported by the coordinator"
)


async def examine(
    config: DaemonConfig, transport: httpx.AsyncBaseTransport | None = None, clock: Clock | None = None
) -> list[Checked]:
    """Yield the findings in the order in which a run needs them."""
    clock = clock or Clock()
    async with open_client(transport=transport, base_url=config.coordinator_url, timeout=_PATIENCE) as http:
        checks = _Checks(config, http, transport_of(http, clock), clock)
        models, slots = (_counted(n, what) for n, what in ((len(config.models), "model"), (_slots(config), "slot")))
        findings = [Checked("configuration", True, f"{models}, {slots}")]
        for part in (
            checks.state_directory,
            checks.metrics,
            checks.coordinator,
            checks.node,
            checks.gateways,
            checks.backends,
        ):
            findings += [finding async for finding in part()]
        return findings


@attrs.frozen(slots=True, eq=False)
class _Checks:
    config: DaemonConfig
    http: httpx.AsyncClient
    transport: Transport
    clock: Clock

    async def state_directory(self) -> AsyncIterator[Checked]:
        directory = self.config.state_directory
        yield await _tried("state directory", lambda: trio.to_thread.run_sync(_writable, directory))

    async def metrics(self) -> AsyncIterator[Checked]:
        if is_in_use(self.config.state_directory):
            yield Checked("metrics", None, "taken by the svcd that runs here")
        else:
            yield await _tried("metrics", lambda: _free(self.config.metrics_host, self.config.metrics_port))

    async def coordinator(self) -> AsyncIterator[Checked]:
        try:
            ready = await self.transport.once("GET", "/readyz")
        except (ApiError, ConnectionFailed) as failed:
            yield Checked("coordinator", False, f"{self.config.coordinator_url}: {failed}")
            return
        yield Checked("coordinator", ready.is_success, _readiness(ready))
        if "date" in ready.headers:
            yield self._clock()
        try:
            deployment = await read_deployment(self.transport)
        except (Unavailable, Refused) as wrong:
            yield Checked("deployment", False, str(wrong))
            return
        yield self._deployment(deployment)
        async for finding in self._signed_in(deployment):
            yield finding

    def _clock(self) -> Checked:
        told = f"{self.clock.ahead:+.1f} s against the coordinator's"
        if abs(self.clock.ahead) <= _CLOCK_TOLERANCE:
            return Checked("clock", True, told)
        wrong = wrong_clock(self.clock)
        corrected = f"{told}, which svcd corrects; better set it: timedatectl set-ntp true"
        return Checked("clock", None, corrected) if wrong is None else Checked("clock", False, wrong)

    async def _signed_in(self, deployment: AddressBook) -> AsyncIterator[Checked]:
        signer = OpSigner(self.config.wallet, Domains.of(deployment))
        coordinator = Coordinator(self.transport, sessions_of(self.transport, signer))
        session = await sign_in(coordinator.sessions)
        try:
            if isinstance(session, ProviderSession):
                yield Checked("session", True, f"{signer.address} is provider {session.provider_id}")
                provider = await coordinator.provider(session.provider_id)
                for finding in self._provider(provider):
                    yield finding
                yield await self._alone(coordinator, session.provider_id)
            else:
                provider = None
                yield Checked("session", False, f"{signer.address}: {session.advice}")
            async for finding in self._models(coordinator, provider):
                yield finding
        except (Unavailable, Refused) as wrong:
            yield Checked("registry", False, str(wrong))

    def _deployment(self, deployment: AddressBook) -> Checked:
        chain = f"chain {deployment.chain_id}, job registry {hex_of(deployment.job_registry)}"
        if self.config.addresses is None:
            return Checked("domains", None, f"{chain} (no addresses_file to compare with)")
        found = self.config.addresses.differences(deployment)
        return Checked("domains", not found, "; ".join(found) or chain)

    def _provider(self, provider: ProviderRecord) -> Iterator[Checked]:
        yield Checked("listed", provider.listed, "on the book" if provider.listed else "ask the market's admin")
        slots = _slots(self.config)
        enough = provider.capacity >= slots
        more = "" if enough else "; a run asks for more"
        yield Checked("capacity", enough or None, f"{provider.capacity} granted for {slots} slots{more}")
        if self.config.box is None:
            yield Checked("box key", None, "none configured: designated jobs cannot be opened")
        else:
            wrong = wrong_key(self.config.box, provider)
            yield Checked("box key", wrong is None, wrong or hex_of(self.config.box.public.raw))

    async def _alone(self, coordinator: Coordinator, provider_id: int) -> Checked:
        if is_in_use(self.config.state_directory):
            return Checked("other daemons", None, "cannot check while svcd is running here; see its log and /healthz")
        polled = await coordinator.is_polled_for(provider_id)
        found = rival(provider_id, POLLED_RECENTLY) if polled else f"none polls as provider {provider_id}"
        return Checked("other daemons", not polled, found)

    async def _models(self, coordinator: Coordinator, provider: ProviderRecord | None) -> AsyncIterator[Checked]:
        known = await coordinator.catalogue()
        asks = await coordinator.asks()
        own_id = None if provider is None else provider.provider_id
        others = [ask for ask in asks if ask.provider_id != own_id]
        offered = {window for model in self.config.models for window in model.asks}
        allowed = await allowed_windows(coordinator, self._chain(), offered)
        for model in self.config.models:
            name = model.name
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                yield Checked(f"model {name}", False, f"not in the coordinator's catalogue, which has {names}")
            elif provider is not None and not _is_allowed(provider, known[name].model_id):
                detail = f"id {known[name].model_id} is not allowed to this provider yet: ask the market's admin"
                yield Checked(f"model {name}", False, detail)
            elif wrong := [detail for _, detail in wrong_windows(model, allowed)] if allowed is not None else []:
                yield Checked(f"model {name}", False, "; ".join(wrong))
            else:
                windows = ", ".join(map(str, sorted(model.asks)))
                yield Checked(f"model {name}", True, f"id {known[name].model_id}, windows of {windows} s")
            if name in known:
                if (found := kind_of(model, known[name].endpoint)) is not None:
                    yield Checked(f"kind of {name}", *found)
                yield Checked(f"prices of {name}", *prices_beside(model, known[name].model_id, others))
            if model.ahead is not None:
                most = f"{model.ahead.most_in_flight} base units may be worked for in vain at a time"
                yield Checked(f"{name}, ahead of its claims", None, most)

    def _chain(self) -> ChainReader | None:
        url, book = self.config.rpc_url, self.config.addresses
        return ChainReader(self.http, url, book, provider_id=0) if url is not None and book is not None else None

    async def node(self) -> AsyncIterator[Checked]:
        """Check the market and the provider on the chain, through the provider's node."""
        chain = self._chain()
        if chain is None:
            yield Checked("node", None, _BELIEVED)
            return
        try:
            seen = await chain.chain_id()
            if seen != chain.book.chain_id:
                detail = f"it follows chain {seen}: rpc_url must name a node of chain {chain.book.chain_id}"
                yield Checked("node", False, detail)
                return
            yield Checked("node", True, f"chain {seen}")
            wrong = await chain.wrong_contracts()
            remedy = "; get the market's address book from its operator anew (addresses_file)"
            found = "code and signing domains as in the address book"
            yield Checked("contracts", not wrong, "; ".join(wrong) + remedy if wrong else found)
            if not wrong:
                for finding in self._on_chain(await chain.registered(self.config.wallet.address)):
                    yield finding
        except Unavailable as away:
            yield Checked("node", False, f"{away}; until it answers, or rpc_url names another, claimed jobs are failed")

    def _on_chain(self, registered: Registered | None) -> Iterator[Checked]:
        address = hex_of(self.config.wallet.address)
        if registered is None:
            yield Checked("on the chain", False, f"{address} is no provider: register it with the market's registry")
            return
        name = f"provider {registered.provider_id}"
        more = "listed" if registered.listed else "not listed: ask the market's admin"
        yield Checked("on the chain", registered.listed, f"{name} is {more}")
        if self.config.box is not None:
            ours, theirs = self.config.box.public.raw, registered.box_key
            has = hex_of(theirs) if any(theirs) else "none"
            detail = f"{name} has {has}, ours is {hex_of(ours)}: svcd identity publishes it"
            yield Checked("key on the chain", ours == theirs, hex_of(ours) if ours == theirs else detail)

    async def gateways(self) -> AsyncIterator[Checked]:
        gateways = PayloadGateways(Gateways(self.http, self.config.gateways))
        for url in self.config.gateways:
            error = await gateways.reachable(url)
            yield Checked("gateway", error is None, url if error is None else f"{url}: {error}")

    async def backends(self) -> AsyncIterator[Checked]:
        for model in self.config.models:
            yield await _tried(f"backend of {model.name}", lambda model=model: _up(model))  # type: ignore[misc]
            yield await _tried(f"load of {model.name}", lambda model=model: _load(model))  # type: ignore[misc]


def _readiness(answer: httpx.Response) -> str:
    """Return the code or reason that /readyz names; its status where it names none."""
    try:
        body = parse(answer.content)
    except Refused:
        body = None
    told = body if isinstance(body, dict) else {}
    return str(told.get("code") or told.get("reason", answer.status_code))


async def _up(model: ModelConfig) -> str:
    async with open_backend(model.backend) as backend:
        if not await backend.is_up():
            raise _Wrong(f"{_whereabouts(model)} does not answer as one that is up")
        unknown = await backend.unknown_name(model.name)
        if unknown is not None:
            raise _Wrong(wrong_name(model.name, unknown))
    return f"{_whereabouts(model)} is up"


async def _load(model: ModelConfig) -> str:
    async with open_load(model.load, model=model.name, slots=model.slots, in_flight=lambda: 0) as load:
        reading = await load.probe.read()
    if reading is None:
        where = model.load.url if isinstance(model.load, PrometheusSettings | JsonSettings) else "its own slots"
        raise _Wrong(f"{where} gives no reading")
    return f"{reading:.2f}"


def _whereabouts(model: ModelConfig) -> str:
    match model.backend:
        case OpenAISettings(base_url=url) | HttpSettings(submit_url=url):
            return url
        case ExecSettings(command=command):
            return command[0]
        case EchoSettings():
            return "echo"


def _is_allowed(provider: ProviderRecord, model_id: int) -> bool:
    return provider.allow_all_models or model_id in provider.allowed_models


def _slots(config: DaemonConfig) -> int:
    return sum(config.slots.values())


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


class _Wrong(Exception):
    """Raised by a failed check, with the detail to show."""


async def _tried(what: str, look: Callable[[], Awaitable[str]]) -> Checked:
    with trio.move_on_after(_PATIENCE):
        try:
            return Checked(what, True, await look())
        except (_Wrong, OSError) as wrong:
            return Checked(what, False, str(wrong))
    return Checked(what, False, f"no answer in {_PATIENCE:g} s")


def _writable(directory: Path) -> str:
    """Check the directory without creating it, because the daemon may run as another user."""
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise _Wrong(f"{there} cannot be written by this user")
    return str(directory) if there == directory else f"{directory} will be made"


async def _free(host: str, port: int) -> str:
    """Bind the port briefly, because `svcd run` exits at once if the port is in use."""
    try:
        with trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await trial.bind((host, port))
    except OSError as error:
        reason = error.strerror or error
        raise _Wrong(f"{host}:{port}: {reason}; set another port under [metrics]") from None
    return f"{host}:{port} is free"
