"""Session handshake: a nonce for an address, its signature, a bearer token."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import attrs

from common.api.fields import ADDRESS, Choice, Text, wire
from common.domains import Domains
from common.messages.sessions import SvcSession
from common.refusal import Refused
from common.scalars import read_hex
from common.secp256k1 import recover
from coordinatord.api.sessions import sessions_sql
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NotSigned, SessionRow
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.fresh_value import FreshValue
from coordinatord.storage.database.prepared import PreparedConnection

# Delay until revocations by other processes are seen here.
_REVOCATION_DELAY_S: Final = 0.05
_MAX_CACHED_SESSIONS: Final = 65_536
# The database's clock decides when a session ends, and that clock may change, so sessions are read again after this
# time.
_MAX_CACHE_S: Final = 60.0


@attrs.frozen(slots=True)
class _Known:
    row: SessionRow
    taken_back: int
    until: float


class SessionCache:
    """Session cache, invalidated when any session is revoked.

    The database counts revocations (evicted, dropped or changed by hand) by any process or person. Concurrent requests
    share one read of the count. Cached sessions stay valid while the count is unchanged.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._reads = BatchedReads[bytes, SessionRow | None](database.prepared_connection(), self._read)
        self._taken_back = FreshValue(database.prepared_connection(), sessions_sql.read_taken_back, clock)
        self._clock = clock
        self._known: dict[bytes, _Known] = {}

    async def find(self, token_hash: bytes) -> SessionRow | None:
        known = self._known.get(token_hash)
        if known is None or self._clock() >= known.until:
            return await self._reads.get(token_hash)
        if known.taken_back != await self._taken_back.lately(_REVOCATION_DELAY_S):
            return await self._reads.get(token_hash)
        return known.row

    async def opened(self) -> None:
        """Read the revocation count after opening a session, which may have evicted another one.

        A database failure here does not fail the new session: the next request reads the count again.
        """
        with suppress(Retryable):
            await self._taken_back.get()

    async def _read(self, line: PreparedConnection, hashes: list[bytes]) -> dict[bytes, SessionRow | None]:
        asked_at = self._clock()
        taken_back, live = await sessions_sql.read_sessions(line, hashes)
        if len(self._known) + len(live) > _MAX_CACHED_SESSIONS:
            self._known.clear()
        found: dict[bytes, SessionRow | None] = dict.fromkeys(hashes)
        for token_hash, session in live.items():
            found[token_hash] = session.row
            until = asked_at + min(session.seconds_left, _MAX_CACHE_S)
            self._known[token_hash] = _Known(session.row, taken_back, until)
        return found


_TOKEN: Final = re.compile(r"svc_sess_[A-Za-z0-9_-]{43}", re.ASCII)
_NONCE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


@attrs.frozen(slots=True)
class SessionBody:
    address: bytes = wire(ADDRESS, "the address that the nonce was issued to")
    nonce: str = wire(Text(64), "the nonce of GET /auth/nonce", example="00112233445566778899aabbccddeeff")
    # Read as text, because a malformed signature is answered as a wrong one (401) and not as a malformed field.
    signature: str = wire(Text(256), "the wallet's SvcSession signature over (address, nonce)")
    role: str = wire(Choice(("client", "provider")), optional=True, default="client")


@attrs.frozen(slots=True)
class IssuedNonce:
    nonce: str
    expires_at: int


@attrs.frozen(slots=True)
class OpenedSession:
    token: str
    expires_at: int
    provider_id: int | None


SignInOutcome: TypeAlias = OpenedSession | NotSigned


@attrs.frozen(slots=True)
class SessionService:
    domains: Domains
    database: Database
    providers: ProviderRegistry
    live: SessionCache

    async def issue_nonce(self, address: bytes, caller: str) -> IssuedNonce:
        nonce = secrets.token_hex(16)
        expires_at = await self.database.transact(lambda c: sessions_sql.add_nonce(c, nonce, address, caller))
        return IssuedNonce(nonce, expires_at)

    async def open(self, body: SessionBody) -> SignInOutcome:
        """Open a session. The nonce is used up in the same transaction and not before, so a 503 can be retried."""
        async with self.database.connection() as connection:
            issued_to = (
                await sessions_sql.nonce_address(connection, body.nonce) if _NONCE.fullmatch(body.nonce) else None
            )
        if issued_to is None:
            raise _unknown_nonce()
        if issued_to != body.address or self._signer(body) != body.address:
            return NotSigned("authentication_error", "invalid_signature", "the signature is not of this address")
        provider_id = None
        if body.role == "provider":
            provider_id = await self.providers.provider_id_of(body.address)
            if provider_id is None:
                return NotSigned(
                    "authentication_error", "not_registered", "the wallet must belong to a registered provider"
                )
        return await self._open(body, provider_id)

    async def find(self, token: str) -> SessionRow | None:
        """Return the live session of a bearer token, or None for any other text."""
        return await self.live.find(hash_token(token)) if _TOKEN.fullmatch(token) else None

    def _signer(self, body: SessionBody) -> bytes | None:
        try:
            signature = read_hex(body.signature, 65, "signature")
        except Refused:
            return None
        return recover(self.domains.session.digest(SvcSession(body.address, body.nonce)), signature)

    async def _open(self, body: SessionBody, provider_id: int | None) -> OpenedSession:
        token = "svc_sess_" + secrets.token_urlsafe(32)
        expires_at = await self.database.transact(
            lambda c: sessions_sql.open_session(c, body.nonce, hash_token(token), body.address, provider_id)
        )
        if expires_at is None:
            raise _unknown_nonce()
        await self.live.opened()
        return OpenedSession(token, expires_at, provider_id)


def hash_token(token: str) -> bytes:
    """Return the hash stored in place of a token. Tokens are random, so a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).digest()


def _unknown_nonce() -> Refused:
    return Refused("the nonce is unknown, expired or used", "nonce")
