"""PostgreSQL's protocol over a blocking socket: messages, and the simulation's connection."""

import base64
import hashlib
import hmac
import os
import select
import socket
import struct
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import attrs

STARTUP: Final = 196608
AUTHENTICATED: Final = (0, 12)
_ANSWER_BYTES: Final = 1 << 16
_BACKEND_EXIT_S: Final = 5.0  # of the real clock


class ServerGone(Exception):
    """The server closed the connection."""


@attrs.frozen
class Address:
    host: str
    port: int
    user: str
    password: str = attrs.field(repr=False)
    database: str

    @classmethod
    def of(cls, url: str) -> "Address":
        parts = urlsplit(url)
        return cls(
            str(parts.hostname), int(parts.port or 0), str(parts.username), str(parts.password), parts.path.lstrip("/")
        )


class Wire:
    """A blocking connection to the server, message by message."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._come = bytearray()

    def readable(self, seconds: float) -> bool:
        return bool(self._come) or bool(select.select([self.socket], [], [], seconds)[0])

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def message(self) -> tuple[str, bytes]:
        """Return a message's type and all its bytes."""
        come = self._come
        while len(come) < 5 or len(come) < 1 + int.from_bytes(come[1:5]):
            more = self.socket.recv(_ANSWER_BYTES)
            if not more:
                raise ServerGone
            come += more
        whole = 1 + int.from_bytes(come[1:5])
        told = bytes(come[:whole])
        del come[:whole]
        return chr(told[0]), told

    def end(self) -> None:
        """Wait until the backend has exited and released its locks. It closes its side of the connection last."""
        try:
            self.send(b"X", struct.pack("!i", 4))
            self.socket.settimeout(_BACKEND_EXIT_S)
            while self.socket.recv(_ANSWER_BYTES):
                pass
        except OSError:
            pass
        self.socket.close()


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def field_of(told: bytes, name: bytes) -> str:
    """Return a field of an error or a notice, or an empty string."""
    for field in told[5:].split(b"\0"):
        if field[:1] == name:
            return field[1:].decode()
    return ""


class ControlConnection:
    """A connection for simple queries. It sees committed rows, and has no faults."""

    def __init__(self, address: Address) -> None:
        self.wire = Wire(address)
        self._sign_in(address)

    def query(self, text: str) -> list[tuple[str, ...]]:
        """Return rows as text. NULL is empty."""
        self.wire.send(message(b"Q", text.encode() + b"\0"))
        return self._rows(text)

    def is_blocked(self, pid: int) -> bool:
        return self.query(f"select cardinality(pg_blocking_pids({pid}))") != [("0",)]

    def close(self) -> None:
        self.wire.end()

    def _rows(self, text: str) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        failure = ""
        while True:
            kind, told = self.wire.message()
            match kind:
                case "D":
                    rows.append(tuple(_columns(told)))
                case "E":
                    failure = field_of(told, b"M")
                case "Z":
                    if failure:
                        raise RuntimeError(f"{failure}: {text}")
                    return rows

    def _sign_in(self, address: Address) -> None:
        settings = ("user", address.user, "database", address.database, "client_min_messages", "warning")
        body = struct.pack("!i", STARTUP) + b"".join(word.encode() + b"\0" for word in settings) + b"\0"
        self.wire.send(struct.pack("!i", len(body) + 4), body)
        nonce = base64.b64encode(os.urandom(18)).decode()
        bare = f"n=,r={nonce}"
        self._answer()
        self.wire.send(message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(bare) + 3) + f"n,,{bare}".encode()))
        first = self._answer()
        fields = dict(part.split("=", 1) for part in first.split(","))
        salted = hashlib.pbkdf2_hmac(
            "sha256", address.password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
        )
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={fields['r']}"
        signature = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{first},{last}".encode(), "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        self.wire.send(message(b"p", f"{last},p={proof}".encode()))
        self._rows("to sign in")

    def _answer(self) -> str:
        kind, told = self.wire.message()
        if kind != "R":
            raise RuntimeError(field_of(told, b"M"))
        return told[9:].decode(errors="replace")


def _columns(told: bytes) -> Iterator[str]:
    (count,) = struct.unpack("!h", told[5:7])
    at = 7
    for _ in range(count):
        (length,) = struct.unpack("!i", told[at : at + 4])
        at += 4
        yield told[at : at + max(length, 0)].decode()
        at += max(length, 0)
