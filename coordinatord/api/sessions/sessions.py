"""Sign-in of wallets: issue a nonce, check its signature, and open a session with a bearer token."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import attrs

from common.api.fields import ADDRESS, Choice, Text, body_field
from common.domains import Domains
from common.messages.sessions import SvcSession
from common.refusal import Refused
from common.scalars import read_hex
from common.secp256k1 import recover_address
from coordinatord.api.sessions import sessions_sql
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow, Unauthorised
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.fresh_value import FreshValue
from coordinatord.storage.database.prepared import PreparedConnection

# Longest time until this process notices a revocation by another process.
_MAX_REVOCATION_DELAY_S: Final = 0.05
_MAX_CACHED_SESSIONS: Final = 65_536
# The database's clock decides when a session ends. That clock may be adjusted, so cached sessions are read again after
# this time.
_MAX_CACHE_LIFETIME_S: Final = 60.0


@attrs.frozen(slots=True)
class _CachedSession:
    row: SessionRow
    revocations: int
    valid_until: float


class SessionCache:
    """Session cache, invalidated when any session is revoked.

    The database counts revocations, also those by other processes or by an operator's SQL. Concurrent requests share
    one read of the count. Cached sessions stay valid while the count is unchanged.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._reads = BatchedReads[bytes, SessionRow | None](database.prepared_connection(), self._read_sessions)
        self._revocations = FreshValue(database.prepared_connection(), sessions_sql.read_revocations, clock)
        self._clock = clock
        self._cache: dict[bytes, _CachedSession] = {}

    async def find(self, token_hash: bytes) -> SessionRow | None:
        known = self._cache.get(token_hash)
        if known is None or self._clock() >= known.valid_until:
            return await self._reads.get(token_hash)
        if known.revocations != await self._revocations.get_recent(_MAX_REVOCATION_DELAY_S):
            return await self._reads.get(token_hash)
        return known.row

    async def refresh_revocations(self) -> None:
        """Read the revocation count after opening a session, which may have evicted another one.

        A database failure here does not fail the new session: the next request reads the count again.
        """
        with suppress(Retryable):
            await self._revocations.get()

    async def _read_sessions(
        self, connection: PreparedConnection, hashes: list[bytes]
    ) -> dict[bytes, SessionRow | None]:
        read_at = self._clock()
        revocations, live = await sessions_sql.read_sessions(connection, hashes)
        if len(self._cache) + len(live) > _MAX_CACHED_SESSIONS:
            self._cache.clear()
        found: dict[bytes, SessionRow | None] = dict.fromkeys(hashes)
        for token_hash, session in live.items():
            found[token_hash] = session.row
            until = read_at + min(session.seconds_left, _MAX_CACHE_LIFETIME_S)
            self._cache[token_hash] = _CachedSession(session.row, revocations, until)
        return found


_TOKEN_PATTERN: Final = re.compile(r"svc_sess_[A-Za-z0-9_-]{43}", re.ASCII)
_NONCE_PATTERN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


@attrs.frozen(slots=True)
class SessionBody:
    address: bytes = body_field(ADDRESS, "the address that the nonce was issued to")
    nonce: str = body_field(Text(64), "the nonce of GET /auth/nonce", example="00112233445566778899aabbccddeeff")
    # Read as text, because a malformed signature is answered with 401 like a wrong one, and not as a malformed field.
    signature: str = body_field(Text(256), "the wallet's SvcSession signature over (address, nonce)")
    role: str = body_field(Choice(("client", "provider")), optional=True, default="client")


@attrs.frozen(slots=True)
class IssuedNonce:
    nonce: str
    expires_at: int


@attrs.frozen(slots=True)
class OpenedSession:
    token: str
    expires_at: int
    provider_id: int | None


SignInOutcome: TypeAlias = OpenedSession | Unauthorised


@attrs.frozen(slots=True)
class SessionService:
    domains: Domains
    database: Database
    providers: ProviderRegistry
    cache: SessionCache

    async def issue_nonce(self, address: bytes, caller: str) -> IssuedNonce:
        nonce = secrets.token_hex(16)
        expires_at = await self.database.transact(lambda c: sessions_sql.add_nonce(c, nonce, address, caller))
        return IssuedNonce(nonce, expires_at)

    async def open(self, body: SessionBody) -> SignInOutcome:
        """Open a session. The nonce is used up in the same transaction and not before, so a 503 can be retried."""
        async with self.database.connection() as connection:
            issued_to = (
                await sessions_sql.read_nonce_address(connection, body.nonce)
                if _NONCE_PATTERN.fullmatch(body.nonce)
                else None
            )
        if issued_to is None:
            raise _unknown_nonce_error()
        if issued_to != body.address or self._recover_signer(body) != body.address:
            return Unauthorised(
                "authentication_error",
                "invalid_signature",
                "the nonce was not issued to this address, or the address did not sign it",
            )
        provider_id = None
        if body.role == "provider":
            provider_id = await self.providers.read_provider_id(body.address)
            if provider_id is None:
                return Unauthorised(
                    "authentication_error", "not_registered", "the wallet must belong to a registered provider"
                )
        return await self._store_session(body, provider_id)

    async def find(self, token: str) -> SessionRow | None:
        """Return the live session of a bearer token, or None for any other text."""
        return await self.cache.find(hash_token(token)) if _TOKEN_PATTERN.fullmatch(token) else None

    def _recover_signer(self, body: SessionBody) -> bytes | None:
        try:
            signature = read_hex(body.signature, 65, "signature")
        except Refused:
            return None
        return recover_address(self.domains.session.digest(SvcSession(body.address, body.nonce)), signature)

    async def _store_session(self, body: SessionBody, provider_id: int | None) -> OpenedSession:
        token = "svc_sess_" + secrets.token_urlsafe(32)
        expires_at = await self.database.transact(
            lambda c: sessions_sql.open_session(c, body.nonce, hash_token(token), body.address, provider_id)
        )
        if expires_at is None:
            raise _unknown_nonce_error()
        await self.cache.refresh_revocations()
        return OpenedSession(token, expires_at, provider_id)


def hash_token(token: str) -> bytes:
    """Return the hash stored in place of a token. Tokens are random, so a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).digest()


def _unknown_nonce_error() -> Refused:
    return Refused("the nonce is unknown, expired or used; request a new nonce", "nonce")
