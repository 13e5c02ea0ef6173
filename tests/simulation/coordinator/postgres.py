"""A real PostgreSQL, driven synchronously. Each statement takes effect at one moment of simulated time.

A simulated session passes a client's bytes to the server at their planned time, waits for the whole response while
nothing else runs, and delivers the response later. Other sessions run in between. `pg_blocking_pids` finds statements
that wait for another session's lock. They continue when the lock is released.

The server uses simulated time: `public.clock_timestamp()` precedes PostgreSQL's function in the search path, and every
request sets the time. `public.pg_notify` sends notices as NOTICE messages. They are dropped on rollback, and reach each
listening session at a separate time.
"""

import asyncio
import itertools
import os
import random
import signal
import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

from tests.simulation.coordinator.clocks import START
from tests.simulation.coordinator.wire import (
    AUTHENTICATED,
    STARTUP,
    Address,
    ControlConnection,
    ServerGone,
    Wire,
    field_of,
    message,
)

# Functions that come first in the search path of a simulated database.
STAND_INS: Final = """
create function public.clock_timestamp() returns timestamptz language sql volatile as $$
    select pg_catalog.to_timestamp(coalesce(nullif(pg_catalog.current_setting('sim.now', true), ''), '0')::float8) $$;
create function public.statement_timestamp() returns timestamptz language sql stable as $$
    select pg_catalog.to_timestamp(coalesce(nullif(pg_catalog.current_setting('sim.now', true), ''), '0')::float8) $$;
create function public.now() returns timestamptz language sql stable as $$
    select pg_catalog.to_timestamp(coalesce(nullif(pg_catalog.current_setting('sim.began', true), ''), '0')::float8) $$;
create function public.pg_notify(channel text, payload text) returns void language plpgsql volatile as $$
begin
    raise notice 'simulated % %', channel, payload;
end $$;
"""
SEARCH_PATH: Final = "public, pg_catalog"

_CANCEL: Final = 80877102
_FLUSH: Final = b"H\0\0\0\4"
_POLL_S: Final = 0.004  # of the real clock
_LOCK_WAIT_S: Final = 0.03  # longer than `deadlock_timeout`, so the session that closes a cycle detects it
SETTINGS: Final = (
    "deadlock_timeout=10ms",
    "autovacuum=off",
    "synchronize_seqscans=off",
    "jit=off",
    "max_connections=200",
)


@attrs.define(eq=False)
class Request:
    """A client's bytes, and the messages that complete the response: one for each in `left`."""

    content: bytes
    left: int
    text: str
    flushed: bool = False  # the client sent Flush instead of Sync, so the response ends with a description or an error
    unheard: int = 0  # earlier responses to statements that the simulation prepended
    answer: bytes = b""
    tag: str = ""


class Session(asyncio.Transport):
    """One connection of a client to the server. Each of its requests takes effect, and is answered, at moments that
    the server gives."""

    def __init__(self, server: "SimulatedServer", number: int, owner: object, protocol: Any, wire: Wire) -> None:
        super().__init__()
        self.server, self.number, self.owner, self.wire = server, number, owner, wire
        self.protocol = protocol
        self.pid = 0
        self.closed = False
        self.listens: set[str] = set()
        self.notices: list[tuple[str, str]] = []
        self.status = "I"  # of the transaction: idle, active, or failed
        self.requests: list[Request] = []  # in order; the first may be under way
        self._written = b""
        self._prepared: dict[bytes, str] = {}
        self._started = False

    # --- transport methods used by asyncpg ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.wire.socket if name == "socket" else default

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        if self.closed:
            return
        self._written += bytes(data)
        if not self._started:
            self._first()
            return
        if self._written.startswith(b"X"):  # Terminate message
            self.abort()
            return
        messages = _messages(self._written)
        left = sum(kind in b"QSHpcf" for kind, _ in messages or ())
        if messages is not None and left:
            content, self._written = self._written, b""
            self.server.submit(self, Request(content, left, self._text(messages), content.endswith(_FLUSH)))

    def _text(self, messages: list[tuple[bytes, bytes]]) -> str:
        """Return the requested statement, by text or by the name of a prepared one."""
        text = ""
        for kind, body in messages:
            words = body.split(b"\0")
            if kind == b"Q":
                text = words[0].decode(errors="replace")
            elif kind == b"P":
                text = self._prepared[words[0]] = words[1].decode(errors="replace")
            elif kind == b"B":
                text = self._prepared.get(words[1], "")
        return text

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.server.end(self)
            self.server.loop.call_soon(self.protocol.connection_lost, None)

    # --- the server's side ---

    def lost(self) -> None:
        """Cut the connection, and notify the client."""
        if not self.closed:
            self.server.end(self)
            self.server.loop.call_soon(self.protocol.connection_lost, ConnectionResetError("connection reset by peer"))

    def _first(self) -> None:
        """Read a startup message or a request to cancel another session's statement. Neither has a type byte."""
        length, code = struct.unpack("!ii", self._written[:8])
        content, self._written = self._written, b""
        assert len(content) == length, (len(content), length)
        self._started = True
        if code == _CANCEL:
            self.server.cancel(self, struct.unpack("!i", content[8:12])[0])
        else:
            assert code == STARTUP, code
            self.server.submit(self, Request(content, 1, "startup"))


def _messages(written: bytes) -> list[tuple[bytes, bytes]] | None:
    """Split into types and bodies. Return None if the last message is incomplete."""
    at, found = 0, []
    while at < len(written):
        end = at + 1 + int.from_bytes(written[at + 1 : at + 5])
        if len(written) < at + 5 or len(written) < end:
            return None
        found.append((written[at : at + 1], written[at + 5 : end]))
        at = end
    return found


class SimulatedServer:
    """`delay` returns the seconds until a request takes effect, and until its response arrives. `executed` is called
    with each request that took effect."""

    def __init__(self, loop: Any, address: Address, admin: ControlConnection, seed: object) -> None:
        self.loop, self.address, self.admin = loop, address, admin
        self.chance = random.Random(f"database {seed}")
        self.sessions: dict[int, Session] = {}
        self._numbers = itertools.count(1)
        self._waiting: list[Session] = []
        self.executed: Callable[[Session, Request], None] = lambda session, request: None
        self.admits: Callable[[object], bool] = lambda owner: True
        self.owner: Callable[[], object] = lambda: None
        self.trouble: Callable[[Session, Request], str | None] = lambda session, request: None
        self.statements = 0

    def delay(self) -> float:
        return self.chance.expovariate(1 / 0.002) if self.chance.random() < 0.9 else self.chance.uniform(0, 0.2)

    async def connect(self, protocol_factory: Callable[[], Any], *_: Any) -> tuple[Session, Any]:
        owner = self.owner()
        await asyncio.sleep(self.delay())
        if not self.admits(owner):
            raise ConnectionRefusedError("the database is not there")
        protocol = protocol_factory()
        session = Session(self, next(self._numbers), owner, protocol, Wire(self.address))
        self.sessions[session.number] = session
        protocol.connection_made(session)
        return session, protocol

    def submit(self, session: Session, request: Request) -> None:
        session.requests.append(request)
        if len(session.requests) == 1:
            self.loop.call_later(self.delay(), self._take_effect, session, request)

    def _take_effect(self, session: Session, request: Request) -> None:
        if session.closed:
            return
        trouble = self.trouble(session, request)
        if trouble == "before":
            session.lost()
            return
        try:
            session.wire.send(self._with_time(session, request))
            if not self._answered(session, request):
                self._freeze(session)
                return
        except (ServerGone, OSError):
            session.lost()
            return
        self._done(session, request, cut=trouble == "after")
        self._look_after_waiting()

    def _with_time(self, session: Session, request: Request) -> bytes:
        """Return the request, preceded by a statement that sets the time if possible."""
        if request.text == "startup" or request.content[:1] in b"pdcfS":
            return request.content
        now = f"{START + self.loop.time():.6f}"
        text = f"set sim.now to '{now}'" + (f"; set sim.began to '{now}'" if session.status == "I" else "")
        request.unheard = 1
        return message(b"Q", text.encode() + b"\0") + request.content

    def _answered(self, session: Session, request: Request) -> bool:
        """Read the response. Return False if the statement waits for another session's lock."""
        waited = 0.0
        while request.left:
            if not session.wire.readable(_POLL_S):
                waited += _POLL_S
                if waited > _LOCK_WAIT_S and self.admin.is_blocked(session.pid):
                    return False
                continue
            self._hear(session, request, *session.wire.message())
        return True

    def _hear(self, session: Session, request: Request, kind: str, told: bytes) -> None:
        if request.unheard:
            request.unheard -= kind == "Z"
            return
        match kind:
            case "N" if b"simulated " in told:
                _, channel, payload = (*field_of(told, b"M").split(" ", 2), "")[:3]
                if (channel, payload) not in session.notices:
                    session.notices.append((channel, payload))
                return
            case "A":
                return
            case "K":
                session.pid = struct.unpack("!i", told[5:9])[0]
            case "C":
                request.tag = told[5:-1].decode()
            case "E":
                request.tag = f"error {field_of(told, b'C')}"
                request.left -= request.flushed
            case "T" | "n" if request.flushed:
                request.left -= 1
            case "G":
                request.left -= 1
            case "R" if struct.unpack("!i", told[5:9])[0] not in AUTHENTICATED:
                request.left -= 1
            case "Z":
                request.left -= 1
                session.status = chr(told[5])
        request.answer += told

    def _done(self, session: Session, request: Request, *, cut: bool = False) -> None:
        self.statements += 1
        if session.status == "I":
            told, session.notices = session.notices, []
            if not request.tag.startswith(("ROLLBACK", "error")):
                self._tell(told)
        words = request.text.split(None, 1)
        if words and words[0].upper() == "LISTEN":
            session.listens.add(words[1].strip('"; '))
        self.executed(session, request)
        if cut:
            session.lost()
        else:
            self.loop.call_later(self.delay(), self._deliver, session, request)

    def _deliver(self, session: Session, request: Request) -> None:
        if session.closed:
            return
        session.protocol.data_received(request.answer)
        session.requests.remove(request)
        if session.requests and not session.closed:
            self.loop.call_later(self.delay(), self._take_effect, session, session.requests[0])

    def _freeze(self, session: Session) -> None:
        """Stop a waiting backend, so that after a commit the backends that it blocked continue one at a time."""
        os.kill(session.pid, signal.SIGSTOP)
        self._waiting.append(session)

    def _look_after_waiting(self) -> None:
        """Continue the sessions that are no longer blocked, in the order in which they began to wait."""
        again = True
        while again:
            again = False
            for session in list(self._waiting):
                if session in self._waiting and not self.admin.is_blocked(session.pid):
                    self._waiting.remove(session)
                    os.kill(session.pid, signal.SIGCONT)
                    again = self._goes_on(session, session.requests[0]) or again

    def _goes_on(self, session: Session, request: Request) -> bool:
        """Return False if the session waits for the next lock."""
        try:
            if not self._answered(session, request):
                self._freeze(session)
                return False
        except (ServerGone, OSError):
            session.lost()
            return True
        self._done(session, request)
        return True

    # --- notices ---

    def _tell(self, told: list[tuple[str, str]]) -> None:
        for channel, payload in told:
            for session in list(self.sessions.values()):
                if channel in session.listens:
                    body = struct.pack("!i", 1) + channel.encode() + b"\0" + payload.encode() + b"\0"
                    self.loop.call_later(self.delay(), self._notify, session, message(b"A", body))

    def _notify(self, session: Session, told: bytes) -> None:
        if not session.closed:
            session.protocol.data_received(told)

    # --- ends ---

    def end(self, session: Session) -> None:
        """Close the connection. All its locks are free on return."""
        session.closed = True
        self.sessions.pop(session.number, None)
        waited = session in self._waiting
        if waited:
            self._waiting.remove(session)
        if waited:
            self.admin.query(f"select pg_terminate_backend({session.pid})")
            os.kill(session.pid, signal.SIGCONT)
        session.wire.end()
        self._look_after_waiting()

    def cancel(self, canceller: Session, pid: int) -> None:
        """Cancel a client's statement. Finished effects stay, and a wait for a lock ends."""
        for session in list(self._waiting):
            if session.pid == pid:
                self.admin.query(f"select pg_cancel_backend({pid})")
                self._waiting.remove(session)
                os.kill(pid, signal.SIGCONT)
                self._goes_on(session, session.requests[0])
        canceller.abort()
