"""Record one seed of the coordinators' simulation.

The seed determines the plan: orders, batches, faults, kills. Other random draws are fixed, or use separate sources.
Statements and calls of the node take no time. Of several ready tasks, the oldest runs first. Each request to a
coordinator, each job of a provider and each process has a separate source. With one shared source, an additional
statement would change every later delay.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.coordinator.clocks import START  # isort: skip # before coordinatord is imported

import asyncpg
import eth_abi
import httpx

from common.address_book import AddressBook
from common.api.events import EventKind
from common.artifacts import load_artifact
from common.keccak import keccak256
from tests.simulation import determinism
from tests.simulation.coordinator import lives, run
from tests.simulation.coordinator.actors import Provider, Told
from tests.simulation.coordinator.chain import SimulatedChain
from tests.simulation.coordinator.exchange import Exchange
from tests.simulation.coordinator.ground import Ground
from tests.simulation.coordinator.lives import LIFE, Front
from tests.simulation.coordinator.loop import SimulatedLoop
from tests.simulation.coordinator.planning import planned
from tests.simulation.coordinator.postgres import SimulatedServer
from tests.simulation.coordinator.store import SimulatedStore
from tests.simulation.determinism import SeededBytes
from tests.simulation.recorder.entries import Entry, Exchanged, entries_of
from tests.simulation.recorder.normal import Normaliser, canonical
from tests.support.invariants.market_log import MarketLog, _type, read_market_log

_MAX_LINES: Final = 1000  # more than the jobs of any order
_REGISTRIES: Final = ("JobRegistry", "ProviderRegistry", "AskRegistry")
# Notes of the simulation, and histories of rows by block. The tables have the latest values.
_LEFT_OUT: Final = {"lease_history", "session_history", "nonce_history", "undo_journal"}
_TABLES: Final = "select tablename from pg_tables where schemaname = 'public' order by 1"

_POST: ContextVar[int] = ContextVar("post", default=-1)  # the place of an order in the plan

_Rows = dict[str, list[dict[str, Any]]]


def record_seed(seed: int, ground: Ground) -> list[Entry]:
    heard: list[Exchanged] = []
    runs: list[Any] = []
    with ExitStack() as stack:
        for target, name, stand_in in _steady(heard.append, runs.append):
            stack.enter_context(patch.object(target, name, stand_in))
        outcome = run.simulate(planned(seed), ground)
    (played,) = runs
    book = played._book
    rows = ground.portal.call(_read_tables, played._url)
    log = ground.portal.call(read_market_log, ground.rpc_url, book)
    normal = Normaliser(_names(played, ground, book))
    found = [entry for exchanged in heard for entry in entries_of(exchanged, normal)]
    found += _events(rows.pop("events"), normal)
    found += _transactions(rows.pop("relays"), normal)
    found += _logs(log, normal)
    found += _tables(rows, normal)
    found += [Entry.about("promise", "broken", normal.text(broken)) for broken in outcome.broken]
    return found


# --- a steady world ---


def _steady(hear: Callable[[Exchanged], None], began: Callable[[Any], None]) -> Iterator[tuple[Any, str, Any]]:
    class Run(run._Run):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            began(self)

        def _buyers(self, http: httpx.AsyncClient) -> Iterator[Coroutine[Any, Any, None]]:
            for number, part in enumerate(super()._buyers(http)):
                yield _as_post(number, part)

    class Heard(Exchange):
        """Records each answer when it is complete. A stream is recorded when it ends."""

        def __init__(self, request: httpx.Request) -> None:
            super().__init__(request)
            self._head: Mapping[str, Any] | None = None
            self._pieces: list[bytes] = []

        async def _send(self, message: Any) -> None:
            if message["type"] == "http.response.start":
                self._head = message
            else:
                self._pieces.append(bytes(message.get("body", b"")))
                if not message.get("more_body", False):
                    self._told()
            await super()._send(message)

        def cut(self) -> None:
            if self._head is not None and (b"content-type", b"text/event-stream") in self._kind():
                self._told()
            super().cut()

        def _kind(self) -> list[tuple[bytes, bytes]]:
            assert self._head is not None
            return [(name, said.partition(b";")[0]) for name, said in self._head["headers"]]

        def _told(self) -> None:
            assert self._head is not None
            asked, head, self._head = self._request, self._head, None
            headers = {name.decode(): said.decode() for name, said in head["headers"]}
            path = asked.url.raw_path.decode()
            hear(Exchanged(asked.method, path, asked.content, head["status"], headers, b"".join(self._pieces)))

    yield run, "_Run", Run
    yield run, "Told", _Told
    yield run, "SimulatedServer", _Server
    yield run, "SimulatedChain", _Chain
    yield run, "SimulatedLoop", _Loop
    yield run, "SimulatedStore", _Store
    yield run, "Front", _Front
    yield run, "Provider", _Provider
    yield lives, "Exchange", Heard
    yield determinism, "SeededBytes", _BytesOfProcess


async def _as_post(number: int, part: Coroutine[Any, Any, None]) -> None:
    _POST.set(number)
    await part


class _Told(Told):
    """Numbers a job by its order's place in the plan, not by the time of the order."""

    def named(self, job: str) -> str:
        if job not in self.numbers:
            first = _MAX_LINES * (_POST.get() + 1)
            self.numbers[job] = first + sum(first <= number < first + _MAX_LINES for number in self.numbers.values())
        return f"job {self.numbers[job]}"


class _Even(random.Random):
    """Waits for the average time."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd


class _Server(SimulatedServer):
    def delay(self) -> float:
        return 0.0


class _Chain(SimulatedChain):
    def delay(self) -> float:
        return 0.0


class _Store(SimulatedStore):
    def __init__(self, faults: Any, seed: object) -> None:
        super().__init__(faults, seed)
        self._chance = _Even(f"store {seed}")


class _Oldest:
    """Replaces the random order of ready tasks: the oldest is first."""

    def shuffle(self, steps: list[Any]) -> None: ...


class _Loop(SimulatedLoop):
    def __init__(self, seed: object) -> None:
        super().__init__(seed)
        self._chance: Any = _Oldest()


class _Front(Front):
    def __init__(self, coordinators: Any, faults: Any, seed: object) -> None:
        super().__init__(coordinators, faults, seed)
        self._seed, self._asked = seed, Counter[str]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        what = f"{request.method} {request.url.path}"
        self._asked[what] += 1
        apart = copy.copy(self)
        apart._chance = _Even(f"front {self._seed} {what} {self._asked[what]}")
        return await super(_Front, apart).handle_async_request(request)


class _OfJob(random.Random):
    """A retry's wait does not change later random values."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2 if a else super().uniform(a, b)


class _Provider(Provider):
    async def _work(self, row: Any) -> None:
        apart = copy.copy(self)
        apart.chance = _OfJob(f"{self.party.address} {self.told.named(row['job_id'])}")
        await super(_Provider, apart)._work(row)


class _BytesOfProcess(SeededBytes):
    """Keys and ids: each life of a coordinator, and each of their users, has a separate source."""

    def __init__(self, seed: object) -> None:
        super().__init__(seed)
        self._seed, self._sources = seed, dict[str, random.Random]()

    def __call__(self, length: int) -> bytes:
        life = LIFE.get()
        name = "-" if life is None else life.name
        source = self._sources.setdefault(name, random.Random(f"bytes {self._seed} {name}"))
        return source.randbytes(length)


# --- names ---


def _names(played: Any, ground: Ground, book: AddressBook) -> dict[str, str]:
    names = {job.removeprefix("0x"): f"job#{number}" for job, number in played.told.numbers.items()}
    names |= {batch: f"batch#{number}" for number, batch in enumerate(played.told.batches)}
    for role in {wallet.role for wallet in ground.wallets.wallets}:
        for number, wallet in enumerate(ground.wallets.with_role(role)):
            names[wallet.address.removeprefix("0x").lower()] = f"{role}#{number}"
    for contract in ("job_registry", "provider_registry", "ask_registry", "paytoken"):
        names[getattr(book, contract).hex()] = contract
    return names


# --- final state ---


async def _read_tables(url: str) -> _Rows:
    connection = await asyncpg.connect(url)
    try:
        tables = [row[0] for row in await connection.fetch(_TABLES)]
        queries = {table: f'select to_jsonb(t) from "{table}" t' for table in tables}  # noqa: S608 - names of tables
        return {table: [json.loads(row[0]) for row in await connection.fetch(queries[table])] for table in tables}
    finally:
        await connection.close()


def _events(rows: list[dict[str, Any]], normal: Normaliser) -> Iterator[Entry]:
    for row in sorted(rows, key=lambda row: row["id"]):
        back = row.pop("takes_back") is not None
        kind = EventKind(row.pop("kind")).name.lower() + (" taken back" if back else "")
        yield Entry.about("event", kind, normal.entry(_without_serial(row)))


def _transactions(rows: list[dict[str, Any]], normal: Normaliser) -> Iterator[Entry]:
    """Yield each request to the relayer with its end, in order of arrival."""
    for row in sorted(rows, key=lambda row: row["id"]):
        kind, call = f"{row.pop('kind')} {row['state']}", _call(bytes.fromhex(row.pop("calldata")[2:]))
        del row["dedupe"]
        row["tx_id"] = row["tx_id"] is not None
        row["call_index"] = row["call_index"] is not None
        yield Entry.about("transaction", kind, normal.entry({**_without_serial(row), "call": call}))


def _logs(log: MarketLog, normal: Normaliser) -> Iterator[Entry]:
    """Yield the chain's final logs."""
    for told in (*log.events, *log.transfers):
        if told.time > START:
            yield Entry.about("log", told.name, normal.entry(told.values))


def _tables(rows: _Rows, normal: Normaliser) -> Iterator[Entry]:
    for table, found in sorted(rows.items()):
        if table not in _LEFT_OUT:
            entries = [Entry.about("table", table, normal.entry(_without_serial(row))) for row in found]
            yield from sorted(entries, key=lambda entry: canonical(entry.value))


def _without_serial(row: dict[str, Any]) -> dict[str, Any]:
    """Drop serial ids, which only say how many rows came before."""
    return {
        name: f"<{name}>" if isinstance(value, int) and name in ("id", "tx_id", "relay_id") else value
        for name, value in row.items()
    }


def _call(calldata: bytes) -> Any:
    name, fields = _functions().get(calldata[:4], ("<unknown>", []))
    if not fields:
        return {"function": name}
    values = eth_abi.decode([kind for _, kind in fields], calldata[4:])
    return {"function": name, **{field: value for (field, _), value in zip(fields, values, strict=True)}}


def _functions() -> dict[bytes, tuple[str, list[tuple[str, str]]]]:
    found = {}
    for contract in _REGISTRIES:
        for entry in load_artifact(contract).abi:
            if entry["type"] == "function":
                fields = [(field["name"], _type(field)) for field in entry["inputs"]]
                signature = f"{entry['name']}({','.join(kind for _, kind in fields)})"
                found[keccak256(signature.encode())[:4]] = (entry["name"], fields)
    return found
