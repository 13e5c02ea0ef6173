"""`coordinatord check`: check everything that the daemon needs to start and to run.

The checks only read the database. They write a small object, the probe, to the pin store and remove it.
"""

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

import anyio
import attrs

from common.checks import CheckRow, fact, right, unknown, wrong
from common.daemon.process import Fatal
from common.daemon.secrets import Secret
from common.domains import Domains
from coordinatord.api.escrow.handover import OperatorKeys
from coordinatord.api.escrow.keys import KeyPair
from coordinatord.api.escrow.peer import FailedPull, open_peer
from coordinatord.base.clock import system_clock
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import HttpClient, NoResponse, open_http
from coordinatord.base.metrics import REGISTRY
from coordinatord.http.server.serving import listening_socket
from coordinatord.run.checks.chain import ChainChecks
from coordinatord.run.checks.database import database_rows
from coordinatord.run.checks.nodes import NODE_REMEDY
from coordinatord.run.checks.parts import CheckPart, run_parts
from coordinatord.run.config import ANY_HOST, Config, read_config, setting_rows, unknown_settings, variable_names
from coordinatord.run.dependencies import open_pin_store
from coordinatord.run.descriptors import max_caller_connections, memory_limit_bytes, raise_descriptor_limit
from coordinatord.storage.pins.kubo import KuboStore
from coordinatord.storage.pins.store import PinStore

# Maximum difference between this machine's clock and the pin store's. Object stores tolerate fifteen minutes.
_CLOCK_TOLERANCE_S: Final = 60.0
_STORE_TIMEOUT_S: Final = 60.0
# A public gateway needs some time to find new content.
_GATEWAY_TIMEOUT_S: Final = 20.0
_RECOMMENDED_CONNECTIONS: Final = 1024
_NEARLY_FULL_SHARE: Final = 0.9
_STORE_REMEDY: Final = "compare PIN_STORE_* with docs/operators/stores.md, and check that the store is up"
_DATABASE_REMEDY: Final = "check DATABASE_URL, and that PostgreSQL is up"
_ESCROW_MODE_TEXTS: Final = {
    "off": "off: clients can only seal to a provider; open orders are refused (403 escrow_unavailable)",
    "static": "static: open orders are sealed to the first key of OPERATOR_KEY; the holder of that key can read the"
    " orders, and jobs can be opened for as long as you keep the key",
    "mock": "mock: for development; the coordinator creates and rotates the keys, which are lost when its last process"
    " ends",
}


async def run_checks(environ: Mapping[str, str]) -> list[CheckRow]:
    """Return the rows of all checks, in the order in which the daemon needs them at its start."""
    rows = [_variables_row(environ)]
    found = find_settings_faults(environ)
    if found:
        return [
            *(wrong("settings", fault, "`coordinatord settings` lists every variable") for fault in found),
            *rows,
            unknown("everything else", "not checked", "correct the settings first"),
        ]
    config = read_config(environ)
    given = sum(bool(environ.get(name)) for name in variable_names())
    rows.insert(0, right("settings", f"{given} variables are set, the others have their defaults"))
    parts = [
        CheckPart("database", lambda: database_rows(config), _DATABASE_REMEDY),
        CheckPart("node", ChainChecks(config).rows, NODE_REMEDY, seconds=60),
        CheckPart("pin store", lambda: _pin_store_rows(config), _STORE_REMEDY, _STORE_TIMEOUT_S),
        CheckPart("escrow", lambda: _escrow_rows(config), "check OPERATOR_KEY and PEER_URL"),
        CheckPart("port", lambda: _port_rows(config), "check PORT and BIND_HOST"),
    ]
    return [*rows, *await run_parts(parts), _open_files_row(config, raise_descriptor_limit(), memory_limit_bytes())]


def _open_files_row(config: Config, descriptors: int, memory: int) -> CheckRow:
    connections = max_caller_connections(descriptors, memory, config)
    if connections >= _RECOMMENDED_CONNECTIONS:
        return right("open files", f"enough for {connections} connections")
    detail = f"{descriptors} open files and {memory >> 20} MiB of memory leave room for {connections} connections"
    return fact("open files", detail, "raise LimitNOFILE and MemoryMax of the unit, or `ulimit -Hn` of a shell")


def find_settings_faults(environ: Mapping[str, str]) -> list[str]:
    """Return every fault of the settings. The daemon's start reports only the first fault."""
    found = [f"{row.name} {row.problem}" for row in setting_rows(environ) if row.problem is not None]
    if found:
        return found
    try:
        read_config(environ)
    except Fatal as fault:
        return [str(fault)]
    return []


def _variables_row(environ: Mapping[str, str]) -> CheckRow:
    unknown = unknown_settings(environ)
    if not unknown:
        return right("variables", "no variable looks like a misspelled setting")
    names = ", ".join(name if near is None else f"{name} (did you mean {near}?)" for name, near in unknown.items())
    remedy = "correct the name or remove the variable; until then the intended setting has its default"
    return wrong("variables", f"not a setting: {names}", remedy)


@attrs.frozen(slots=True)
class _ProbeKeys:
    """Map of the probe's object key to its content id, in memory, because the database may have no tables yet."""

    held: dict[str, str] = attrs.field(factory=dict)

    async def find_cid(self, key: str) -> str | None:
        return self.held.get(key)

    async def pin(self, key: str, cid: str) -> str | None:
        self.held[key] = cid
        return None

    async def unpin(self, key: str, remove: Callable[[str], Awaitable[None]]) -> None:
        if key in self.held:
            await remove(self.held[key])
            del self.held[key]


async def _pin_store_rows(config: Config) -> AsyncIterator[CheckRow]:
    probe = f"a probe of coordinatord check: {os.urandom(16).hex()}\n".encode()
    key, host = f"probes/{os.urandom(8).hex()}", urlsplit(config.pin_store_endpoint).netloc
    rows: list[CheckRow] = []
    async with AsyncExitStack() as stack:
        pins = await open_pin_store(config, _ProbeKeys(), stack)
        began = time.monotonic()
        try:
            cid = (await pins.put(key, probe)).cid
            if await pins.get(key) != probe:
                rows.append(
                    wrong(
                        "pin store",
                        f"{host} returned other content than was stored",
                        "use another store",
                    )
                )
            else:
                took = time.monotonic() - began
                detail = f"{config.pin_store} at {host}: a probe was stored and read back in {took:.2f} s, as {cid}"
                rows.append(right("pin store", detail))
                rows.append(await _gateway_row(config.gateway_url, cid, probe))
        finally:
            with anyio.move_on_after(10, shield=True) as removing:
                failure = await _remove_probe(pins, key)
            if removing.cancelled_caught:
                failure = "no answer in 10 s"
        if failure:
            remedy = "delete the object by hand, and allow the coordinator to delete objects"
            rows.append(wrong("probe", f"{key} could not be removed ({failure})", remedy))
        rows += [row async for row in _store_rows(pins)]
    for row in rows:
        yield row


async def _remove_probe(pins: PinStore, key: str) -> str | None:
    """Remove the probe. Return None, or the reason why the probe was not removed."""
    try:
        await pins.delete(key)
        return "the store still has the object" if await pins.holds(key) else None
    except Retryable as error:
        return error.message


async def _store_rows(pins: PinStore) -> AsyncIterator[CheckRow]:
    ahead = REGISTRY.get_sample_value("coordinatord_clock_ahead_seconds", {"source": "pin store"})
    if ahead is not None and abs(ahead) > _CLOCK_TOLERANCE_S:
        yield wrong("clock and pin store", f"{ahead:+.0f} s", "synchronise this clock (timedatectl)")
    elif ahead is not None:
        yield right("clock and pin store", f"{ahead:+.1f} s")
    if isinstance(pins, KuboStore):
        stat = await pins.read_repo_stat()
        detail = f"{stat.RepoSize:,} of {stat.StorageMax:,} bytes"
        if stat.StorageMax and stat.RepoSize > _NEARLY_FULL_SHARE * stat.StorageMax:
            yield wrong("room in Kubo", detail, "raise Datastore.StorageMax, or run `ipfs repo gc`")
        else:
            yield right("room in Kubo", detail)


async def _gateway_row(gateway: str | None, cid: str, probe: bytes) -> CheckRow:
    if gateway is None:
        return unknown(
            "gateway",
            "not checked",
            "set GATEWAY_URL to check that clients can read stored content",
        )
    url, answer = f"{gateway}/ipfs/{cid}", "no answer"
    with anyio.move_on_after(_GATEWAY_TIMEOUT_S):
        async with open_http(connections=1, timeout_s=8) as http:
            while (answer := await _find_gateway_fault(http, url, probe)) != "":  # noqa: ASYNC110 - gateways send no events
                await anyio.sleep(1)
            return right("gateway", f"{gateway} serves the probe")
    remedy = "clients read containers and results there: see docs/operators/stores.md"
    return wrong("gateway", f"{url} does not serve the probe within {_GATEWAY_TIMEOUT_S:g} s ({answer})", remedy)


async def _find_gateway_fault(http: HttpClient, url: str, probe: bytes) -> str:
    """Return an empty string if the gateway serves the probe, otherwise the fault."""
    try:
        async with http("GET", url, {}) as response:
            content = await response.read(1 << 16)
    except NoResponse as error:
        return str(error)
    if response.status != 200:
        return f"HTTP {response.status}"
    return "" if content == probe else "the content differs from the probe"


async def _escrow_rows(config: Config) -> AsyncIterator[CheckRow]:
    yield fact("escrow", _ESCROW_MODE_TEXTS[config.escrow_mode])
    if config.escrow_mode == "off":
        return
    keys = [key.reveal() for key in config.operator_keys]
    if len(set(keys)) != len(keys):
        yield wrong("escrow keys", "OPERATOR_KEY names a key twice", "name each key once")
    elif config.relayer_key is not None and config.relayer_key.reveal() in keys:
        remedy = "create another key: the relayer's key is used daily and pays gas, an escrow key opens clients' orders"
        yield wrong("escrow keys", "OPERATOR_KEY contains the relayer's key", remedy)
    elif config.escrow_mode == "static":
        announced = _announced_key(config.operator_keys[0])
        yield right("escrow keys", f"{len(keys)} keys; clients seal to {announced}")
    if config.peer_url is not None:
        yield await _peer_row(config, config.peer_url)


def _announced_key(key: Secret) -> str:
    pair = KeyPair.from_operator_key(bytes.fromhex(key.reveal()))
    try:
        return pair.public.raw.hex()
    finally:
        pair.erase()


async def _port_rows(config: Config) -> AsyncIterator[CheckRow]:
    """Check that no other market listens on the port, because the kernel would distribute callers among
    both markets."""
    listening_socket(config.port, config.bind_host).close()
    if config.bind_host in (ANY_HOST, "::"):
        detail = f"port {config.port} is open on every address of this machine"
        yield fact("bind host", detail, "behind a proxy on this machine, set BIND_HOST=127.0.0.1")
    host, book = _reachable_address(config.bind_host), config.addresses
    try:
        await (await anyio.connect_tcp(host, config.port)).aclose()
    except OSError:
        yield right("port", f"{config.port} is free")
        return
    url = f"http://{host}:{config.port}/evm/chain"
    try:
        async with open_http(connections=1, timeout_s=5) as http, http("GET", url, {}) as response:
            reported = json.loads(await response.read(1 << 16))
            served_market = (reported["chain_id"], reported["contracts"]["job_registry"])
    except (NoResponse, ValueError, LookupError, TypeError):
        yield wrong("port", f"another program answers at {config.port}", "use another PORT, or stop that program")
    else:
        if served_market == (book.chain_id, "0x" + book.job_registry.hex()):
            yield right(
                "port", f"another coordinator of this market serves {config.port}, and this process can share the port"
            )
        else:
            detail = f"{config.port} is served by another market's coordinator, and requests would reach either market"
            yield wrong("port", detail, "use another PORT")


def _reachable_address(host: str) -> str:
    """Return the address that reaches a listener on `host` from this machine."""
    return "127.0.0.1" if host == ANY_HOST else host


async def _peer_row(config: Config, url: str) -> CheckRow:
    """Check that the peer hands over its keys. Erase the received keys at once."""
    operators = OperatorKeys.from_keys(Domains.of(config.addresses), config.operator_keys)
    async with open_peer(url, operators, config.release_ordinal, system_clock) as peer:
        pulled = await peer.pull_keys()
    host = urlsplit(url).netloc
    if isinstance(pulled, FailedPull):
        return wrong(
            "escrow peer",
            f"{host}: {pulled.reason}",
            "check PEER_URL, and that both coordinators have an OPERATOR_KEY in common",
        )
    for generation in pulled:
        generation.key.erase()
    return right("escrow peer", f"{host} hands over {len(pulled)} keys")
