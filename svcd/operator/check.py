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
from common.checks import CheckRow, fact, judged, right, unknown, wrong
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
from svcd.operator.market_comparison import kind_of, prices_beside
from svcd.payload.gateway import PayloadGateways
from svcd.stages.guard import POLLED_RECENTLY
from svcd.stages.reputation_risks import allowed_windows, rival, wrong_clock, wrong_key, wrong_name, wrong_windows

# Signatures count within ±600 s.
_CLOCK_TOLERANCE_S: Final = 60.0
_CHECK_TIMEOUT_S: Final = 15.0
_UNVERIFIED: Final = "claims, payments and terms are not verified on the chain, only reported by the coordinator"
_ADMIN_REMEDY: Final = "ask the market's admin"


async def examine(
    config: DaemonConfig, transport: httpx.AsyncBaseTransport | None = None, clock: Clock | None = None
) -> list[CheckRow]:
    """Yield the findings in the order in which a run needs them."""
    clock = clock or Clock()
    async with open_client(transport=transport, base_url=config.coordinator_url, timeout=_CHECK_TIMEOUT_S) as http:
        checks = _Checks(config, http, transport_of(http, clock), clock)
        models, slots = (_counted(n, what) for n, what in ((len(config.models), "model"), (_slots(config), "slot")))
        findings = [right("configuration", f"{models}, {slots}")]
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

    async def state_directory(self) -> AsyncIterator[CheckRow]:
        directory = self.config.state_directory
        yield await _tried("state directory", lambda: trio.to_thread.run_sync(_writable, directory))

    async def metrics(self) -> AsyncIterator[CheckRow]:
        if is_in_use(self.config.state_directory):
            yield fact("metrics", "the svcd that runs here uses the port")
        else:
            yield await _tried("metrics", lambda: _free(self.config.metrics_host, self.config.metrics_port))

    async def coordinator(self) -> AsyncIterator[CheckRow]:
        try:
            ready = await self.transport.once("GET", "/readyz")
        except (ApiError, ConnectionFailed) as failed:
            yield wrong("coordinator", f"{self.config.coordinator_url}: {failed}", "correct url under [coordinator]")
            return
        yield judged("coordinator", ready.is_success, _readiness(ready), "wait, or ask its operator")
        if "date" in ready.headers:
            yield self._clock()
        try:
            deployment = await read_deployment(self.transport)
        except (Unavailable, Refused) as error:
            yield wrong("deployment", str(error), "correct url under [coordinator]")
            return
        yield self._deployment(deployment)
        async for finding in self._signed_in(deployment):
            yield finding

    def _clock(self) -> CheckRow:
        difference = f"{self.clock.ahead:+.1f} s against the coordinator's"
        if abs(self.clock.ahead) <= _CLOCK_TOLERANCE_S:
            return right("clock", difference)
        risk = wrong_clock(self.clock)
        if risk is not None:
            return wrong("clock", risk.detail, risk.remedy)
        return fact("clock", f"{difference}, which svcd corrects", "set the clock (timedatectl set-ntp true)")

    async def _signed_in(self, deployment: AddressBook) -> AsyncIterator[CheckRow]:
        signer = OpSigner(self.config.wallet, Domains.of(deployment))
        coordinator = Coordinator(self.transport, sessions_of(self.transport, signer))
        session = await sign_in(coordinator.sessions)
        try:
            if isinstance(session, ProviderSession):
                yield right("session", f"{signer.address} is provider {session.provider_id}")
                provider = await coordinator.provider(session.provider_id)
                for finding in self._provider(provider):
                    yield finding
                yield await self._other_daemons(coordinator, session.provider_id)
            else:
                provider = None
                yield wrong("session", f"{signer.address}: {session.advice}")
            async for finding in self._models(coordinator, provider):
                yield finding
        except (Unavailable, Refused) as error:
            yield wrong("registry", str(error), "check again later, or ask the coordinator's operator")

    def _deployment(self, deployment: AddressBook) -> CheckRow:
        chain = f"chain {deployment.chain_id}, job registry {hex_of(deployment.job_registry)}"
        if self.config.addresses is None:
            return unknown("domains", chain, "set addresses_file to compare the deployment with")
        found = self.config.addresses.differences(deployment)
        return judged("domains", not found, "; ".join(found) or chain, "correct url or addresses_file")

    def _provider(self, provider: ProviderRecord) -> Iterator[CheckRow]:
        yield judged("listed", provider.listed, "on the book" if provider.listed else "not on the book", _ADMIN_REMEDY)
        slots = _slots(self.config)
        granted = f"{provider.capacity} granted for {slots} slots"
        if provider.capacity >= slots:
            yield right("capacity", granted)
        else:
            yield fact("capacity", f"{granted}; `svcd run` requests more")
        if self.config.box is None:
            yield fact("box key", "none, so jobs that name this provider cannot be opened", "set box_* under [keys]")
        elif (risk := wrong_key(self.config.box, provider)) is not None:
            yield wrong("box key", risk.detail, risk.remedy)
        else:
            yield right("box key", hex_of(self.config.box.public.raw))
            if provider.largest_bundle is None:
                yield fact("bundles", "not announced, so each batch line is a job", "announce them: svcd identity")
            else:
                yield right("bundles", f"up to {provider.largest_bundle} batch lines in a job")

    async def _other_daemons(self, coordinator: Coordinator, provider_id: int) -> CheckRow:
        if is_in_use(self.config.state_directory):
            return unknown("other daemons", "cannot check while svcd is running here", "see its log and /healthz")
        if await coordinator.is_polled_for(provider_id):
            risk = rival(provider_id, POLLED_RECENTLY)
            return wrong("other daemons", risk.detail, risk.remedy)
        return right("other daemons", f"none polls as provider {provider_id}")

    async def _models(self, coordinator: Coordinator, provider: ProviderRecord | None) -> AsyncIterator[CheckRow]:
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
                detail = f"not in the coordinator's catalogue, which has {names}"
                yield wrong(f"model {name}", detail, "correct name under [[model]]")
            elif provider is not None and not _is_allowed(provider, known[name].model_id):
                detail = f"id {known[name].model_id} is not allowed to this provider yet"
                yield wrong(f"model {name}", detail, _ADMIN_REMEDY)
            elif risks := [risk for _, risk in wrong_windows(model, allowed)] if allowed is not None else []:
                yield wrong(f"model {name}", "; ".join(risk.detail for risk in risks), risks[0].remedy)
            else:
                windows = ", ".join(map(str, sorted(model.asks)))
                yield right(f"model {name}", f"id {known[name].model_id}, windows of {windows} s")
            if name in known:
                if (kind := kind_of(model, known[name].endpoint)) is not None:
                    yield kind
                yield prices_beside(model, known[name].model_id, others)
            if model.ahead is not None:
                risk = f"at most {model.ahead.max_in_flight} base units of unpaid work at a time"
                yield fact(f"{name}, ahead of its claims", risk)

    def _chain(self) -> ChainReader | None:
        url, book = self.config.rpc_url, self.config.addresses
        return ChainReader(self.http, url, book, provider_id=0) if url is not None and book is not None else None

    async def node(self) -> AsyncIterator[CheckRow]:
        """Check the market and the provider on the chain, through the provider's node."""
        chain = self._chain()
        if chain is None:
            yield unknown("node", _UNVERIFIED, "set rpc_url under [coordinator]")
            return
        try:
            seen = await chain.chain_id()
            if seen != chain.book.chain_id:
                remedy = f"rpc_url must name a node of chain {chain.book.chain_id}"
                yield wrong("node", f"it follows chain {seen}", remedy)
                return
            yield right("node", f"chain {seen}")
            faults = await chain.wrong_contracts()
            found = "; ".join(faults) or "code and signing domains as in the address book"
            yield judged("contracts", not faults, found, "get the market's address book again (addresses_file)")
            if not faults:
                for finding in self._on_chain(await chain.registered(self.config.wallet.address)):
                    yield finding
        except Unavailable as error:
            yield wrong("node", f"{error}, so claimed jobs would be failed", "correct rpc_url")

    def _on_chain(self, registered: Registered | None) -> Iterator[CheckRow]:
        address = hex_of(self.config.wallet.address)
        if registered is None:
            yield wrong("on the chain", f"{address} is not a provider", "register it: svcd register")
            return
        name = f"provider {registered.provider_id}"
        listed = "listed" if registered.listed else "not listed"
        yield judged("on the chain", registered.listed, f"{name} is {listed}", _ADMIN_REMEDY)
        if self.config.box is not None:
            ours, theirs = self.config.box.public.raw, registered.box_key
            has = hex_of(theirs) if any(theirs) else "none"
            detail = hex_of(ours) if ours == theirs else f"{name} has {has}, ours is {hex_of(ours)}"
            yield judged("key on the chain", ours == theirs, detail, "publish it: svcd identity")

    async def gateways(self) -> AsyncIterator[CheckRow]:
        gateways = PayloadGateways(Gateways(self.http, self.config.gateways))
        for url in self.config.gateways:
            error = await gateways.reachable(url)
            found = url if error is None else f"{url}: {error}"
            yield judged("gateway", error is None, found, "correct urls under [gateway]")

    async def backends(self) -> AsyncIterator[CheckRow]:
        for model in self.config.models:
            yield await _tried(f"backend of {model.name}", lambda model=model: _up(model))  # type: ignore[misc]
            yield await _tried(f"load of {model.name}", lambda model=model: _load(model))  # type: ignore[misc]


def _readiness(answer: httpx.Response) -> str:
    """Return the code or reason that /readyz names; its status where it names none."""
    try:
        body = parse(answer.content)
    except Refused:
        body = None
    fields = body if isinstance(body, dict) else {}
    return str(fields.get("code") or fields.get("reason", answer.status_code))


async def _up(model: ModelConfig) -> str:
    async with open_backend(model.backend) as backend:
        if not await backend.is_up():
            remedy = "start it, or correct [model.backend]"
            raise _Wrong(f"{_whereabouts(model)} does not answer as one that is up", remedy)
        unknown = await backend.unknown_name(model.name)
        if unknown is not None:
            risk = wrong_name(model.name, unknown)
            raise _Wrong(risk.detail, risk.remedy)
    return f"{_whereabouts(model)} is up"


async def _load(model: ModelConfig) -> str:
    async with open_load(model.load, model=model.name, slots=model.slots, in_flight=lambda: 0) as load:
        reading = await load.probe.read()
    if reading is None:
        where = model.load.url if isinstance(model.load, PrometheusSettings | JsonSettings) else "its own slots"
        raise _Wrong(f"{where} gives no reading", "correct [model.load]")
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
    """Raised by a failed check."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


async def _tried(what: str, look: Callable[[], Awaitable[str]]) -> CheckRow:
    with trio.move_on_after(_CHECK_TIMEOUT_S):
        try:
            return right(what, await look())
        except _Wrong as error:
            return wrong(what, str(error), error.remedy)
        except OSError as error:
            return wrong(what, str(error))
    return wrong(what, f"no answer in {_CHECK_TIMEOUT_S:g} s")


def _writable(directory: Path) -> str:
    """Check the directory without creating it, because the daemon may run as another user."""
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise _Wrong(f"{there} cannot be written by this user", "correct state_directory, or the owner of the folder")
    return str(directory) if there == directory else f"{directory} will be made"


async def _free(host: str, port: int) -> str:
    """Bind the port briefly, because `svcd run` exits at once if the port is in use."""
    try:
        with trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await trial.bind((host, port))
    except OSError as error:
        reason = error.strerror or error
        raise _Wrong(f"{host}:{port}: {reason}", "set another port under [metrics]") from None
    return f"{host}:{port} is free"
