"""Management of webhook endpoints by their owners: add with a secret, list, remove, test."""

import os
import secrets
from collections.abc import Sequence
from typing import Final

import attrs
from nacl import bindings
from nacl.exceptions import CryptoError

from common.api import limits
from common.api.fields import Choice, ListOf, Text, body_field
from common.api.webhooks import SELECTABLE_EVENTS
from common.daemon.secrets import Secret
from common.refusal import Refused
from common.webhooks import MAX_SECRET_BYTES, SECRET_PREFIX, generate_secret, read_secret, secret_text
from coordinatord.api.webhooks import endpoints_sql, fanout_sql
from coordinatord.api.webhooks.addresses import MAX_URL_CHARACTERS, check_url
from coordinatord.api.webhooks.endpoints_sql import Endpoint
from coordinatord.api.webhooks.fanout import new_test_message
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.pins import objects_sql

_NONCE_BYTES: Final = 24
MAX_SECRET_CHARACTERS: Final = len(SECRET_PREFIX) + 4 * ((MAX_SECRET_BYTES + 2) // 3)


@attrs.frozen(slots=True)
class WebhookBody:
    url: str = body_field(
        Text(MAX_URL_CHARACTERS),
        "address to post to: https, port 443, of a public host",
        example="https://hooks.example.org/market",
    )
    events: tuple[str, ...] = body_field(
        ListOf(Choice(SELECTABLE_EVENTS), len(SELECTABLE_EVENTS)),
        "events to receive; all events if omitted",
        optional=True,
        default=(),
        example=["job.settled", "batch.completed"],
    )
    secret: str | None = body_field(
        Text(MAX_SECRET_CHARACTERS),
        "secret to sign with: `whsec_` and the base64 of 24 to 64 bytes; generated if omitted",
        optional=True,
        example="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    )


class SealedSecrets:
    """Encryption of endpoints' secrets for the database: XChaCha20-Poly1305, bound to the endpoint. The first of the
    operator's keys encrypts, and all keys decrypt."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._keys = [bytes.fromhex(key.reveal()) for key in keys]

    def seal(self, webhook_id: str, secret: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        associated_data = webhook_id.encode()
        return nonce + bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
            secret, associated_data, nonce, self._keys[0]
        )

    def open(self, webhook_id: str, sealed: bytes) -> bytes | None:
        """Return the secret, or None if this process lacks the key that it was encrypted with."""
        nonce, ciphertext, associated_data = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], webhook_id.encode()
        for key in self._keys:
            try:
                opened: bytes = bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(
                    ciphertext, associated_data, nonce, key
                )
            except CryptoError:
                continue
            return opened
        return None


@attrs.frozen(slots=True)
class WebhookEndpoints:
    """Endpoints of owners. Wallets are free to create, so only an owner that holds `token` or has a settled job may add
    an endpoint."""

    database: Database
    sealed: SealedSecrets
    token: PaymentToken
    allow_private: bool = False

    async def add(self, owner: bytes, body: WebhookBody) -> tuple[Endpoint, str]:
        """Add an endpoint. Return the endpoint and its secret in plain text."""
        url = check_url(body.url, allow_private=self.allow_private)
        if not await self._has_earned_or_holds_tokens(owner):
            message = (
                "webhooks are for wallets with tokens or a settled job; fund this wallet, or follow GET /evm/events"
            )
            raise Refused(message, None, "webhooks_need_funds")
        secret = read_secret(body.secret) if body.secret is not None else generate_secret()
        webhook_id = f"whk_{secrets.token_hex(12)}"
        wanted = sorted(set(body.events), key=SELECTABLE_EVENTS.index)
        sealed, limit = self.sealed.seal(webhook_id, secret), limits.MAX_WEBHOOKS_PER_OWNER

        async def write(connection: Connection) -> Endpoint | None:
            return await endpoints_sql.insert_endpoint(
                connection, webhook_id, owner, url=url, wanted=wanted, secret=sealed, max_endpoints=limit
            )

        added = await self.database.transact(write)
        if added is None:
            raise Refused(f"a wallet has at most {limit} webhooks; remove one", None, "too_many_webhooks")
        return added, secret_text(secret)

    async def _has_earned_or_holds_tokens(self, owner: bytes) -> bool:
        async with self.database.connection() as connection:
            if await objects_sql.has_earned(connection, owner):
                return True
        funds = await self.token.read_funds([owner], [])
        return funds.balances.get(owner, 0) > 0

    async def list_endpoints(self, owner: bytes) -> Sequence[Endpoint]:
        async with self.database.connection() as connection:
            return await endpoints_sql.list_endpoints(connection, owner)

    async def remove(self, owner: bytes, webhook_id: str) -> bool:
        """Remove an endpoint. Return False when the owner has no such endpoint."""
        removed = False

        async def write(connection: Connection) -> bool:
            """Return True also if an earlier attempt with an unconfirmed commit removed the endpoint."""
            nonlocal removed
            removed = await endpoints_sql.delete_endpoint(connection, webhook_id, owner) or removed
            return removed

        return await self.database.transact(write)

    async def send_test(self, owner: bytes, webhook_id: str) -> str | None:
        """Write a test message. Return its id, or None when the owner has no such endpoint. Raise Retryable while an
        earlier test message waits to be delivered."""
        new = new_test_message(webhook_id)

        async def write(connection: Connection) -> str | None:
            found = await endpoints_sql.lock_endpoint(connection, webhook_id, owner)
            if found is None:
                return None
            endpoint, tested = found
            if endpoint.disabled_at is not None:
                raise Refused("the webhook is disabled; remove it, and add it again", None, "webhook_disabled")
            if tested:
                message = "an earlier test message of this webhook waits to be delivered; GET /v1/webhooks shows it"
                raise Retryable("busy", message, retry_after=15)
            await fanout_sql.write_messages(connection, [new])
            return new.message_id

        return await self.database.transact(write)
