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
from common.checks import CheckRow, fact, right, right_or_wrong, unknown, wrong
from common.daemon.process import Fatal
from common.domains import Domains
from common.refusal import Refused
from common.scalars import hex_of
from common.strict_json import parse
from common.tab.terms import MAX_TABS_PER_OWNER, announces_tabs
from svc.wire.answers import open_response
from svc.wire.connections import open_client
from svc.wire.gateways import Gateways
from svc.wire.transport import ApiError, ConnectionFailed, Transport
from svcd.backends.build import open_backend
from svcd.backends.load import open_load
from svcd.backends.load_settings import JsonSettings, PrometheusSettings
from svcd.backends.settings import EchoSettings, ExecSettings, HttpSettings, OpenAISettings
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig, ModelConfig, TabsTable
from svcd.coordinator.chain import ChainReader, Registration
from svcd.coordinator.client import Coordinator, ProviderRecord, open_transport, read_deployment
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, provider_sessions, sign_in
from svcd.journal.journal import is_daemon_running
from svcd.operator.market_comparison import check_modality, check_prices
from svcd.payload.gateway import PayloadGateways
from svcd.stages.guard import OTHER_DAEMON_POLL_DETAIL
from svcd.stages.reputation_risks import (
    other_daemon_risk,
    read_allowed_windows,
    wrong_clock_risk,
    wrong_key_risk,
    wrong_name_risk,
    wrong_window_risks,
)
from svcd.tabs.certificate import client_context, find_certificate_fault, read_endpoint
from svcd.tabs.direct import MESSAGES_PATH

_CLOCK_TOLERANCE_S: Final = 60.0  # well within the ±600 s in which signatures are valid
_CHECK_TIMEOUT_S: Final = 15.0
_UNVERIFIED_DETAIL: Final = "claims, payments and terms are reported by the coordinator, and not verified on the chain"
_ADMIN_REMEDY: Final = "ask the market's admin"


async def run_checks(
    config: DaemonConfig, transport: httpx.AsyncBaseTransport | None = None, clock: Clock | None = None
) -> list[CheckRow]:
    """Run all checks, and return one row for each, in the order in which `svcd run` needs them."""
    clock = clock or Clock()
    async with open_client(transport=transport, base_url=config.coordinator_url, timeout=_CHECK_TIMEOUT_S) as http:
        checks = _Checks(config, http, open_transport(http, clock), clock)
        models, slots = (
            _format_count(n, what) for n, what in ((len(config.models), "model"), (_total_slots(config), "slot"))
        )
        findings = [right("configuration", f"{models}, {slots}")]
        for part in (
            checks.check_state_directory,
            checks.check_metrics,
            checks.check_direct_endpoint,
            checks.check_coordinator,
            checks.check_node,
            checks.check_gateways,
            checks.check_backends,
        ):
            findings += [finding async for finding in part()]
        return findings


@attrs.frozen(slots=True, eq=False)
class _Checks:
    config: DaemonConfig
    http: httpx.AsyncClient
    transport: Transport
    clock: Clock

    async def check_state_directory(self) -> AsyncIterator[CheckRow]:
        directory = self.config.state_directory
        yield await _run_check("state directory", lambda: trio.to_thread.run_sync(_check_writable, directory))

    async def check_metrics(self) -> AsyncIterator[CheckRow]:
        if is_daemon_running(self.config.state_directory):
            yield fact("metrics", "the running svcd uses the port")
        else:
            yield await _run_check(
                "metrics", lambda: _check_port_free(self.config.metrics_host, self.config.metrics_port, "metrics")
            )

    async def check_direct_endpoint(self) -> AsyncIterator[CheckRow]:
        """Check the direct endpoint's certificate. Then check the URL if the daemon runs, or the port if not."""
        tabs = self.config.tabs
        if tabs is None:
            return
        try:
            fault = await trio.to_thread.run_sync(find_certificate_fault, tabs)
        except Fatal as unusable:
            yield wrong("direct endpoint", str(unusable), "correct certificate and private_key under [tabs]")
            return
        if fault is not None:
            yield wrong("direct endpoint", f"{tabs.certificate}: {fault}", f"get a certificate for {tabs.url}")
        elif is_daemon_running(self.config.state_directory):
            yield await _run_check("direct endpoint", lambda: _check_tab_route(tabs))
        else:
            yield await _run_check("direct endpoint", lambda: _check_port_free(*tabs.listen, "tabs"))

    async def check_coordinator(self) -> AsyncIterator[CheckRow]:
        try:
            ready = await self.transport.send_once("GET", "/readyz")
        except (ApiError, ConnectionFailed) as failed:
            yield wrong("coordinator", f"{self.config.coordinator_url}: {failed}", "correct url under [coordinator]")
            return
        yield right_or_wrong(
            "coordinator", ready.is_success, _describe_readiness(ready), "wait, or ask the coordinator's operator"
        )
        if "date" in ready.headers:
            yield self._check_clock()
        try:
            deployment = await read_deployment(self.transport)
        except (Unavailable, Refused) as error:
            yield wrong("deployment", str(error), "correct url under [coordinator]")
            return
        yield self._check_deployment(deployment)
        async for finding in self._check_session(deployment):
            yield finding

    def _check_clock(self) -> CheckRow:
        difference = f"{self.clock.skew_s:+.1f} s against the coordinator's"
        if abs(self.clock.skew_s) <= _CLOCK_TOLERANCE_S:
            return right("clock", difference)
        risk = wrong_clock_risk(self.clock)
        if risk is not None:
            return wrong("clock", risk.detail, risk.remedy)
        return fact("clock", f"{difference}, which svcd corrects", "set the clock (timedatectl set-ntp true)")

    async def _check_session(self, deployment: AddressBook) -> AsyncIterator[CheckRow]:
        signer = OpSigner(self.config.wallet, Domains.of(deployment))
        coordinator = Coordinator(self.transport, provider_sessions(self.transport, signer))
        session = await sign_in(coordinator.sessions)
        try:
            if isinstance(session, ProviderSession):
                yield right("session", f"{signer.address} is provider {session.provider_id}")
                provider = await coordinator.read_provider(session.provider_id)
                for finding in self._check_provider(provider):
                    yield finding
                yield await self._check_other_daemons(coordinator, session.provider_id)
            else:
                provider = None
                yield wrong("session", f"{signer.address}: {session.operator_message}")
            async for finding in self._check_models(coordinator, provider):
                yield finding
        except (Unavailable, Refused) as error:
            yield wrong("registry", str(error), "check again later, or ask the coordinator's operator")

    def _check_deployment(self, deployment: AddressBook) -> CheckRow:
        chain = f"chain {deployment.chain_id}, job registry {hex_of(deployment.job_registry)}"
        if self.config.addresses is None:
            return unknown(
                "domains", chain, "set addresses_file to compare the deployment with the market's address book"
            )
        found = self.config.addresses.differences(deployment)
        return right_or_wrong("domains", not found, "; ".join(found) or chain, "correct url or addresses_file")

    def _check_provider(self, provider: ProviderRecord) -> Iterator[CheckRow]:
        yield right_or_wrong(
            "listed", provider.listed, "on the book" if provider.listed else "not on the book", _ADMIN_REMEDY
        )
        slots = _total_slots(self.config)
        granted = f"{provider.capacity} of {slots} slots granted"
        if provider.capacity >= slots:
            yield right("capacity", granted)
        else:
            yield fact("capacity", f"{granted}; `svcd run` requests more")
        if self.config.box is None:
            yield fact("box key", "none, so jobs that name this provider cannot be opened", "set box under [keys]")
        elif (risk := wrong_key_risk(self.config.box, provider)) is not None:
            yield wrong("box key", risk.detail, risk.remedy)
        else:
            yield right("box key", hex_of(self.config.box.public.raw))
            if provider.largest_bundle is None:
                yield fact("bundles", "not announced, so each batch line is a job", "announce them: svcd identity")
            else:
                yield right("bundles", f"up to {provider.largest_bundle} batch lines in a job")
            if announces_tabs(provider.evidence):
                yield right(
                    "tabs", f"at most {MAX_TABS_PER_OWNER} tabs for each owner; all tabs use at most half of the slots"
                )
            else:
                yield fact("tabs", "not announced, so each request is a job", "announce them: svcd identity")

    async def _check_other_daemons(self, coordinator: Coordinator, provider_id: int) -> CheckRow:
        if is_daemon_running(self.config.state_directory):
            return unknown("other daemons", "cannot check while svcd is running here", "see svcd's log and /healthz")
        if await coordinator.has_recent_poll(provider_id):
            risk = other_daemon_risk(provider_id, OTHER_DAEMON_POLL_DETAIL)
            return wrong("other daemons", risk.detail, risk.remedy)
        return right("other daemons", f"no other daemon polls as provider {provider_id}")

    async def _check_models(self, coordinator: Coordinator, provider: ProviderRecord | None) -> AsyncIterator[CheckRow]:
        known = await coordinator.read_catalogue()
        asks = await coordinator.read_asks()
        own_id = None if provider is None else provider.provider_id
        others = [ask for ask in asks if ask.provider_id != own_id]
        offered = {window for model in self.config.models for window in model.asks}
        allowed = await read_allowed_windows(coordinator, self._build_chain_reader(), offered)
        for model in self.config.models:
            name = model.name
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                detail = f"not in the coordinator's catalogue, which has {names}"
                yield wrong(f"model {name}", detail, "correct name under [[model]]")
            elif provider is not None and not _is_model_allowed(provider, known[name].model_id):
                detail = f"the registry does not allow this provider model id {known[name].model_id} yet"
                yield wrong(f"model {name}", detail, _ADMIN_REMEDY)
            elif risks := [risk for _, risk in wrong_window_risks(model, allowed)] if allowed is not None else []:
                yield wrong(f"model {name}", "; ".join(risk.detail for risk in risks), risks[0].remedy)
            else:
                windows = ", ".join(map(str, sorted(model.asks)))
                yield right(f"model {name}", f"id {known[name].model_id}, windows of {windows} s")
            if name in known:
                if (kind := check_modality(model, known[name].endpoint)) is not None:
                    yield kind
                yield check_prices(model, known[name].model_id, others)
            if model.ahead is not None:
                risk = f"at most {model.ahead.max_in_flight} base units of unpaid work at a time"
                yield fact(f"{name}, ahead of its claims", risk)

    def _build_chain_reader(self) -> ChainReader | None:
        url, book = self.config.rpc_url, self.config.addresses
        return ChainReader(self.http, url, book, provider_id=0) if url is not None and book is not None else None

    async def check_node(self) -> AsyncIterator[CheckRow]:
        """Check the market and the provider on the chain, through the provider's node."""
        chain = self._build_chain_reader()
        if chain is None:
            yield unknown("node", _UNVERIFIED_DETAIL, "set rpc_url under [coordinator]")
            return
        try:
            seen = await chain.chain_id()
            if seen != chain.address_book.chain_id:
                remedy = f"set rpc_url to a node of chain {chain.address_book.chain_id}"
                yield wrong("node", f"the node follows chain {seen}", remedy)
                return
            yield right("node", f"chain {seen}")
            faults = await chain.find_wrong_contracts()
            found = "; ".join(faults) or "code and signing domains as in the address book"
            yield right_or_wrong("contracts", not faults, found, "get the market's address book again (addresses_file)")
            if not faults:
                for finding in self._check_registration(await chain.read_registration(self.config.wallet.address)):
                    yield finding
        except Unavailable as error:
            yield wrong("node", f"{error}; claimed jobs cannot be verified, so svcd would fail them", "correct rpc_url")

    def _check_registration(self, registered: Registration | None) -> Iterator[CheckRow]:
        address = hex_of(self.config.wallet.address)
        if registered is None:
            yield wrong("on the chain", f"{address} is not registered as a provider", "register it: svcd register")
            return
        name = f"provider {registered.provider_id}"
        listed = "listed" if registered.listed else "not listed"
        yield right_or_wrong("on the chain", registered.listed, f"{name} is {listed}", _ADMIN_REMEDY)
        if self.config.box is not None:
            ours, theirs = self.config.box.public.raw, registered.box_key
            has = hex_of(theirs) if any(theirs) else "none"
            detail = hex_of(ours) if ours == theirs else f"{name} has {has}, but the configured key is {hex_of(ours)}"
            yield right_or_wrong("key on the chain", ours == theirs, detail, "publish it: svcd identity")

    async def check_gateways(self) -> AsyncIterator[CheckRow]:
        gateways = PayloadGateways(Gateways(self.http, self.config.gateways))
        for url in self.config.gateways:
            error = await gateways.find_fault(url)
            found = url if error is None else f"{url}: {error}"
            yield right_or_wrong("gateway", error is None, found, "correct urls under [gateway]")

    async def check_backends(self) -> AsyncIterator[CheckRow]:
        for model in self.config.models:
            yield await _run_check(f"backend of {model.name}", lambda model=model: _check_backend(model))  # type: ignore[misc]
            yield await _run_check(f"load of {model.name}", lambda model=model: _check_load(model))  # type: ignore[misc]


def _describe_readiness(answer: httpx.Response) -> str:
    """Return the code or reason in the response of /readyz, or otherwise the response's status."""
    try:
        body = parse(answer.content)
    except Refused:
        body = None
    fields = body if isinstance(body, dict) else {}
    return str(fields.get("code") or fields.get("reason", answer.status_code))


async def _check_tab_route(tabs: TabsTable) -> str:
    """Request a tab route at the published URL. The daemon answers 401, because the request has no token."""
    context = client_context(read_endpoint(tabs).certificate)
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=_CHECK_TIMEOUT_S) as http:
        try:
            async with open_response(http, "GET", tabs.url.rstrip("/") + MESSAGES_PATH) as response:
                status = response.status_code
        except httpx.RequestError as failed:
            raise _CheckFailed(
                f"{tabs.url} does not answer ({type(failed).__name__})", "correct url, or open the port"
            ) from None
    if status != httpx.codes.UNAUTHORIZED:
        raise _CheckFailed(
            f"{tabs.url} is not this svcd's endpoint: it answered with status {status}", "correct url under [tabs]"
        )
    return tabs.url


async def _check_backend(model: ModelConfig) -> str:
    async with open_backend(model.backend) as backend:
        if not await backend.is_up():
            remedy = "start the model server, or correct [model.backend]"
            raise _CheckFailed(f"{_describe_backend(model)} is down, or rejects jobs", remedy)
        unknown = await backend.explain_unknown_model(model.name)
        if unknown is not None:
            risk = wrong_name_risk(model.name, unknown)
            raise _CheckFailed(risk.detail, risk.remedy)
    return f"{_describe_backend(model)} is up"


async def _check_load(model: ModelConfig) -> str:
    async with open_load(model.load, model=model.name, slots=model.slots, in_flight=lambda: 0) as load:
        reading = await load.probe.read()
    if reading is None:
        where = (
            model.load.url if isinstance(model.load, PrometheusSettings | JsonSettings) else "the share of busy slots"
        )
        raise _CheckFailed(f"no load could be read from {where}", "correct [model.load]")
    return f"{reading:.2f}"


def _describe_backend(model: ModelConfig) -> str:
    match model.backend:
        case OpenAISettings(base_url=url) | HttpSettings(submit_url=url):
            return url
        case ExecSettings(command=command):
            return command[0]
        case EchoSettings():
            return "echo"


def _is_model_allowed(provider: ProviderRecord, model_id: int) -> bool:
    return provider.allow_all_models or model_id in provider.allowed_models


def _total_slots(config: DaemonConfig) -> int:
    return sum(config.slots.values())


def _format_count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


class _CheckFailed(Exception):
    """Failure of a check, with a remedy."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


async def _run_check(name: str, check: Callable[[], Awaitable[str]]) -> CheckRow:
    with trio.move_on_after(_CHECK_TIMEOUT_S):
        try:
            return right(name, await check())
        except _CheckFailed as error:
            return wrong(name, str(error), error.remedy)
        except OSError as error:
            return wrong(name, str(error))
    return wrong(name, f"no answer in {_CHECK_TIMEOUT_S:g} s")


def _check_writable(directory: Path) -> str:
    """Check the state directory without creating it, because the daemon may run as another user."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise _CheckFailed(
            f"{existing} cannot be written by this user", "correct state_directory, or the owner of the folder"
        )
    return str(directory) if existing == directory else f"{directory} will be created"


async def _check_port_free(host: str, port: int, table: str) -> str:
    """Bind the port briefly, because `svcd run` exits at once if the port is in use."""
    try:
        with trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await trial.bind((host, port))
    except OSError as error:
        reason = error.strerror or error
        raise _CheckFailed(f"{host}:{port}: {reason}", f"set another port under [{table}]") from None
    return f"{host}:{port} is free"
