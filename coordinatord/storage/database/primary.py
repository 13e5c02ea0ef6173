"""Connect to the primary among the hosts of DATABASE_URL.

DATABASE_URL may name several hosts: `postgresql://user:password@db1:5432,db2:5432/coordinatord`. Each attempt to
connect tries all of them, the last good one first, and skips standbys.

A promotion raises the server's timeline. Once this process has seen the new timeline, it rejects servers on an older
one. It also terminates its open connections to those servers, which would otherwise hang until they time out.
"""

import socket
from typing import Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakSet

import anyio
import anyio.lowlevel
import asyncpg
import attrs
import structlog

from common.daemon.process import Fatal
from coordinatord.storage.database.epoch import SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL, Epoch
from coordinatord.storage.database.errors import DATABASE_ERRORS, NoPrimary

log = structlog.get_logger(__name__)

# Connection timeout of one host, if there are several.
HOST_CONNECT_TIMEOUT_S: Final = 1.5
# A peer counts as unreachable after these times without an acknowledgement: `_UNACKNOWLEDGED_TIMEOUT_S` for sent bytes,
# `_KEEPALIVE_OPTIONS` for idle connections. The kernel's default is a quarter of an hour.
_UNACKNOWLEDGED_TIMEOUT_S: Final = 20
_KEEPALIVE_OPTIONS: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
# A statement sets the timeout, because PgBouncer ignores or rejects unknown settings in the start-up packet.
_BEGIN_SESSION: Final = (
    "select set_config('statement_timeout', $1, false), pg_backend_pid() as pid, pg_is_in_recovery() as standby,"
    f" {SYSTEM_IDENTIFIER_SQL} as system, case when not pg_is_in_recovery() then {TIMELINE_SQL} end as timeline"
)
# Errors that a pooler in transaction mode causes when it moves a session to another server connection.
_MOVED_SESSION_ERRORS: Final = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

SessionConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@attrs.frozen(slots=True)
class Host:
    """Host name, address or socket folder. A part that DATABASE_URL omits is None, and libpq's rules determine it."""

    name: str | None
    port: int | None

    def __str__(self) -> str:
        return f"{self.name or 'default host'}:{self.port or 'default port'}"


@attrs.frozen(slots=True)
class _Session:
    connection: SessionConnection
    epoch: Epoch | None  # None on a standby
    is_pooled: bool  # True if the server process differs from the process that accepted the connection


class PrimaryConnector:
    """Connects to the primary of DATABASE_URL. `timeout_s` limits one attempt if DATABASE_URL names one host. With
    `standby`, the URL is that of a standby, and `connect` accepts the standby."""

    def __init__(self, url: str, *, timeout_s: float, standby: bool = False) -> None:
        self._url = url
        self._hosts = parse_hosts(url)
        self._timeout_s = timeout_s if len(self._hosts) == 1 else HOST_CONNECT_TIMEOUT_S
        self._standby = standby
        self._epoch: Epoch | None = None
        self._connections: WeakSet[SessionConnection] = WeakSet()

    async def connect(self, statement_timeout_s: float | None, server_timeout_s: float = 0.0) -> SessionConnection:
        """Connect to the first host that is the primary, the last good host first.

        `statement_timeout_s` is asyncpg's timeout of each statement. `server_timeout_s` is the server's timeout of each
        statement, or 0 for none. If no host can be used, raise NoPrimary for several hosts, or the error of the only
        host.
        """
        session = await self._open(statement_timeout_s, server_timeout_s)
        return session.connection

    async def refuse_transaction_pooling(self) -> None:
        """Raise Fatal when a pooler lends one server connection to several sessions.

        Two sessions that are open at the same time have the same server process only behind such a pooler.
        """
        sessions: list[_Session] = []
        try:
            sessions.append(await self._open(self._timeout_s))
            if sessions[0].is_pooled:
                sessions.append(await self._open(self._timeout_s))
                pids = {await session.connection.fetchval("select pg_backend_pid()") for session in sessions}
                if len(pids) < len(sessions):
                    raise _transaction_pooling_error()
        except _MOVED_SESSION_ERRORS:
            raise _transaction_pooling_error() from None
        finally:
            for session in sessions:
                session.connection.terminate()

    async def _open(self, statement_timeout_s: float | None, server_timeout_s: float = 0.0) -> _Session:
        reasons = []
        for host in tuple(self._hosts):
            try:
                session = await self._open_at(host, statement_timeout_s, server_timeout_s)
            except DATABASE_ERRORS as error:
                if len(self._hosts) == 1:
                    raise
                reasons.append(f"{host}: {str(error) or type(error).__name__}")
            else:
                self._hosts.remove(host)
                self._hosts.insert(0, host)
                return session
        raise NoPrimary("; ".join(reasons))

    async def _open_at(self, host: Host, statement_timeout_s: float | None, server_timeout_s: float) -> _Session:
        connection = await asyncpg.connect(
            self._url,
            host=host.name,
            port=host.port,
            timeout=self._timeout_s,
            command_timeout=statement_timeout_s,
        )
        try:
            _set_tcp_timeouts(connection)
            row = await connection.fetchrow(
                _BEGIN_SESSION, str(round(server_timeout_s * 1000)), timeout=self._timeout_s
            )
            if row["standby"] and not self._standby and len(self._hosts) > 1:
                raise NoPrimary("is a standby")
            epoch = None
            if row["timeline"] is not None:
                epoch = Epoch(row["system"], row["timeline"])
                self._accept_epoch(host, epoch)
        except BaseException:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()  # asyncpg starts a task to cancel the statement: let it run first
            finally:
                connection.terminate()
            raise
        self._connections.add(connection)
        return _Session(connection, epoch, row["pid"] != connection.get_server_pid())

    def _accept_epoch(self, host: Host, epoch: Epoch) -> None:
        """Record the epoch. Raise NoPrimary for an older timeline, or for another cluster."""
        newest = self._epoch
        if newest is None or epoch == newest:
            self._epoch = epoch
        elif epoch.system_identifier != newest.system_identifier:
            raise NoPrimary("is another database cluster: restart this process if that is intended")
        elif epoch.timeline < newest.timeline:
            raise NoPrimary(f"has timeline {epoch.timeline}, and a primary of timeline {newest.timeline} exists")
        else:
            log.warning("primary replaced", host=str(host), timeline=epoch.timeline, before=newest.timeline)
            self._epoch = epoch
            for connection in tuple(self._connections):
                connection.terminate()
            self._connections.clear()


def parse_hosts(url: str) -> list[Host]:
    """Return the hosts that a PostgreSQL URL names, or a single host without a name if the URL names none. Raise
    ValueError if a port is not a number."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    specs = parts.netloc.rpartition("@")[2] or query.get("host", "")
    ports = query.get("port", "").split(",")
    hosts = [_parse_host(spec) for spec in specs.split(",")]
    return [
        Host(host.name, host.port or _parse_port(ports[min(place, len(ports) - 1)])) for place, host in enumerate(hosts)
    ]


def _parse_host(spec: str) -> Host:
    if spec.startswith("["):  # IPv6
        name, _, port = spec[1:].partition("]")
        return Host(name, _parse_port(port[1:]))
    if spec.startswith("/"):
        return Host(spec, None)
    name, _, port = spec.partition(":")
    return Host(unquote(name) or None, _parse_port(port))


def _parse_port(text: str) -> int | None:
    return int(text) if text else None


def _transaction_pooling_error() -> Fatal:
    return Fatal(
        "DATABASE_URL: the pooler shares server connections between sessions (PgBouncer's transaction mode), which"
        " breaks locks and notices: set pool_mode = session for this database, or connect to PostgreSQL itself"
    )


def _set_tcp_timeouts(connection: SessionConnection) -> None:
    """Set the kernel's timeouts of a TCP connection, so that an unreachable server is noticed."""
    # A private member: asyncpg has no public way to its socket. test_silent_database.py fails without it.
    opened = connection._transport.get_extra_info("socket")
    if opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_TIMEOUT_S * 1000)
    for option, value in _KEEPALIVE_OPTIONS:
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
