"""Endpoints of webhooks as their owners manage them: added with a secret, listed, removed, tested."""

import os
import secrets
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs
from nacl import bindings
from nacl.exceptions import CryptoError

from common.api import limits
from common.api.fields import Choice, Several, Text, wire
from common.api.webhooks import WANTED
from common.daemon.secrets import Secret
from common.webhooks import SECRET_MOST, SECRET_PREFIX, new_secret, read_secret, secret_text
from coordinatord.api.webhooks import webhooks_sql
from coordinatord.api.webhooks.destinations import LONGEST_URL, check_url
from coordinatord.api.webhooks.fanout import test_message
from coordinatord.api.webhooks.webhooks_sql import Endpoint, NewEndpoint
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.pins import objects_sql

_NONCE_BYTES: Final = 24
_LONGEST_SECRET: Final = len(SECRET_PREFIX) + 4 * ((SECRET_MOST + 2) // 3)


@attrs.frozen(slots=True)
class WebhookBody:
    url: str = wire(
        Text(LONGEST_URL),
        "address to post to: https, port 443, of a public host",
        example="https://hooks.example.org/market",
    )
    events: tuple[str, ...] = wire(
        Several(Choice(WANTED), len(WANTED)),
        "events that it wants; all unless given",
        optional=True,
        default=(),
        example=["job.settled", "batch.completed"],
    )
    secret: str | None = wire(
        Text(_LONGEST_SECRET),
        "secret to sign with: `whsec_` and the base64 of 24 to 64 bytes; made here unless given",
        optional=True,
        example="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    )


class SealedSecrets:
    """Secrets of endpoints as the database keeps them: XChaCha20-Poly1305 under the first of the operator's keys, bound
    to the endpoint. Each of the keys opens."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._keys = [bytes.fromhex(key.reveal()) for key in keys]

    def seal(self, webhook_id: str, secret: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        bound = webhook_id.encode()
        return nonce + bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(secret, bound, nonce, self._keys[0])

    def open(self, webhook_id: str, sealed: bytes) -> bytes | None:
        """None when it was sealed under a key that is not here."""
        nonce, ciphertext, bound = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], webhook_id.encode()
        for key in self._keys:
            try:
                opened: bytes = bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, bound, nonce, key)
            except CryptoError:
                continue
            return opened
        return None


@attrs.frozen(slots=True)
class AddedEndpoint:
    """`secret`: as its owner reads it, this once."""

    endpoint: Endpoint
    secret: str


@attrs.frozen(slots=True)
class TooManyEndpoints:
    """The owner has as many as one may have."""


@attrs.frozen(slots=True)
class NoFunds:
    """The owner has neither tokens nor a settled job."""


@attrs.frozen(slots=True)
class DisabledEndpoint:
    """Nothing is posted to it any more."""


@attrs.frozen(slots=True)
class TestWaits:
    """A test that will be posted next."""

    message_id: str


AddOutcome: TypeAlias = AddedEndpoint | TooManyEndpoints | NoFunds
TestOutcome: TypeAlias = TestWaits | DisabledEndpoint | NoSuchObject


@attrs.frozen(slots=True)
class WebhookEndpoints:
    """`token`: an owner must have some of it, or a settled job. Wallets that cost nothing could add any number."""

    database: Database
    sealed: SealedSecrets
    token: PaymentToken
    private: bool = False

    async def add(self, owner: bytes, body: WebhookBody) -> AddOutcome:
        url = check_url(body.url, private=self.private)
        if not await self._has_earned_or_holds_tokens(owner):
            return NoFunds()
        secret = read_secret(body.secret) if body.secret is not None else new_secret()
        webhook_id = f"whk_{secrets.token_hex(12)}"
        wanted = sorted(set(body.events), key=WANTED.index)
        new = NewEndpoint(webhook_id, owner, url, wanted, self.sealed.seal(webhook_id, secret))
        added = await self.database.transact(lambda c: webhooks_sql.add(c, new, limits.WEBHOOKS))
        return AddedEndpoint(added, secret_text(secret)) if added is not None else TooManyEndpoints()

    async def _has_earned_or_holds_tokens(self, owner: bytes) -> bool:
        async with self.database.connection() as connection:
            if await objects_sql.has_earned(connection, owner):
                return True
        funds = await self.token.funds([owner], [])
        return funds.balances.get(owner, 0) > 0

    async def list(self, owner: bytes) -> Sequence[Endpoint]:
        async with self.database.connection() as connection:
            return await webhooks_sql.list_of(connection, owner)

    async def remove(self, owner: bytes, webhook_id: str) -> bool:
        """False when the owner has no such endpoint."""
        removed = False

        async def write(connection: Connection) -> bool:
            """True, too, where an attempt that was taken for lost had removed it."""
            nonlocal removed
            removed = await webhooks_sql.remove(connection, webhook_id, owner) or removed
            return removed

        return await self.database.transact(write)

    async def test(self, owner: bytes, webhook_id: str) -> TestOutcome:
        """Raises Retryable while the test before it waits."""
        message = test_message(webhook_id)

        async def write(connection: Connection) -> TestOutcome:
            found = await webhooks_sql.addressee(connection, webhook_id, owner)
            if found is None:
                return NoSuchObject("webhook")
            endpoint, tested = found
            if endpoint.disabled_at is not None:
                return DisabledEndpoint()
            if tested:
                raise Retryable("busy", "a test of this webhook waits already; read its last attempt", retry_after=15)
            await webhooks_sql.write(connection, [message])
            return TestWaits(message.message_id)

        return await self.database.transact(write)
