"""`svcd check`: everything that a run will need, looked at once and told in a table."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import httpx
import trio

from common.refusal import Refused
from common.scalars import hex_of
from svcd.backends.build import open_backend
from svcd.clock import Clock
from svcd.config import Config, ModelConfig
from svcd.coordinator.client import Coordinator, read_chain
from svcd.coordinator.deployment import Deployment, differences
from svcd.coordinator.requests import NoAnswer, Requests
from svcd.coordinator.sessions import Session, Sessions
from svcd.coordinator.signer import Signer
from svcd.findings import Finding
from svcd.gateway import Gateways
from svcd.probes.build import open_load
from svcd.trouble import Unavailable

_CLOCK_TOLERANCE: Final = 60.0  # of the ±600 seconds within which signatures count
_PATIENCE: Final = 15.0


async def examine(config: Config, http: httpx.AsyncClient | None = None) -> list[Finding]:
    """In the order in which a run would need them."""
    async with AsyncExitStack() as stack:
        if http is None:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=_PATIENCE, trust_env=False))
        checkup = _Checkup(config, http, Requests(http, config.coordinator_url))
        findings = [Finding("configuration", True, f"{len(config.models)} models, {sum(config.slots.values())} slots")]
        for part in (checkup.state_directory, checkup.coordinator, checkup.gateways, checkup.backends):
            findings += [finding async for finding in part()]
        return findings


@attrs.frozen(slots=True, eq=False)
class _Checkup:
    config: Config
    http: httpx.AsyncClient
    requests: Requests

    async def state_directory(self) -> AsyncIterator[Finding]:
        directory = self.config.state_directory
        yield await _tried("state directory", lambda: trio.to_thread.run_sync(_writable, directory))

    async def coordinator(self) -> AsyncIterator[Finding]:
        asked = time.time()
        ready = await self.requests.ask("GET", "/readyz", attempts=1)
        if isinstance(ready, NoAnswer):
            yield Finding("coordinator", False, f"{self.config.coordinator_url}: {ready.detail}")
            return
        yield Finding("coordinator", ready.status == 200, f"{ready.fields.get('reason', ready.status)}")
        if ready.date is not None:
            # The header has whole seconds, cut off.
            ahead = (asked + time.time()) / 2 - (ready.date + 0.5)
            yield Finding("clock", abs(ahead) <= _CLOCK_TOLERANCE, f"{ahead:+.1f} s against the coordinator's")
        try:
            deployment = await read_chain(self.requests)
        except (Unavailable, Refused) as wrong:
            yield Finding("deployment", False, str(wrong))
            return
        yield self._deployment(deployment)
        signer = Signer(self.config.wallet, deployment.domains)
        coordinator = Coordinator(self.requests, Sessions(self.requests, signer, Clock()))
        session = await coordinator.sessions.current()
        if not isinstance(session, Session):
            yield Finding("session", False, f"{signer.address}: {session.detail} ({session.status})")
            return
        yield Finding("session", True, f"{signer.address} is provider {session.provider_id}")
        try:
            async for finding in self._provider(coordinator, session):
                yield finding
        except (Unavailable, Refused) as wrong:
            yield Finding("registry", False, str(wrong))

    def _deployment(self, deployment: Deployment) -> Finding:
        chain = f"chain {deployment.book.chain_id}, job registry {hex_of(deployment.book.job_registry)}"
        if self.config.addresses is None:
            return Finding("domains", None, f"{chain} (no addresses_file to compare with)")
        found = differences(self.config.addresses, deployment.book)
        return Finding("domains", not found, "; ".join(found) or chain)

    async def _provider(self, coordinator: Coordinator, session: Session) -> AsyncIterator[Finding]:
        provider = await coordinator.provider(session.provider_id)
        yield Finding("listed", provider.listed, "on the book" if provider.listed else "ask the market's admin")
        slots = sum(self.config.slots.values())
        enough = provider.capacity >= slots
        more = "" if enough else "; a run asks for more"
        yield Finding("capacity", enough or None, f"{provider.capacity} granted for {slots} slots{more}")
        if self.config.box is None:
            yield Finding("box key", None, "none configured: designated jobs cannot be opened")
        else:
            ours = hex_of(self.config.box.public.raw)
            same = provider.box_key == ours
            yield Finding("box key", same, ours if same else f"the registry has {provider.box_key}: run svcd identity")
        known = await coordinator.models()
        for name in self.config.slots:
            what = f"id {known[name]}" if name in known else "not in the coordinator's catalogue"
            yield Finding(f"model {name}", name in known, what)

    async def gateways(self) -> AsyncIterator[Finding]:
        gateways = Gateways(self.http, self.config.gateways)
        for url in self.config.gateways:
            trouble = await gateways.reachable(url)
            yield Finding("gateway", trouble is None, url if trouble is None else f"{url}: {trouble}")

    async def backends(self) -> AsyncIterator[Finding]:
        for model in self.config.models:
            yield await _tried(f"backend of {model.name}", lambda model=model: _up(model))  # type: ignore[misc]
            yield await _tried(f"load of {model.name}", lambda model=model: _load(model))  # type: ignore[misc]


async def _up(model: ModelConfig) -> str:
    async with open_backend(model.backend) as backend:
        if not await backend.is_up():
            raise _Wrong("it does not answer")
    return "up"


async def _load(model: ModelConfig) -> str:
    async with open_load(model.load, model=model.name, slots=model.slots, in_flight=lambda: 0) as load:
        reading = await load.probe.read()
    if reading is None:
        raise _Wrong("no reading")
    return f"{reading:.2f}"


class _Wrong(Exception):
    """A look that came to nothing."""


async def _tried(what: str, look: Callable[[], Awaitable[str]]) -> Finding:
    with trio.move_on_after(_PATIENCE):
        try:
            return Finding(what, True, await look())
        except (_Wrong, OSError) as wrong:
            return Finding(what, False, str(wrong))
    return Finding(what, False, f"no answer in {_PATIENCE:g} s")


def _writable(directory: Path) -> str:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = directory / ".writable"
    probe.write_bytes(b"")
    probe.unlink()
    return str(directory)
