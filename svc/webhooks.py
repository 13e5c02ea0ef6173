"""Routes of this wallet's webhooks, and the verification of their messages."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from common import webhooks
from common.api.webhooks import NewWebhook, WebhookFields, WebhookTested
from svc.account import Account
from svc.error_conversion import raises_svc_errors
from svc.records import Record
from svc.wire.transport import read


class ListedWebhook(WebhookFields, frozen=True):
    """Endpoint and the state of its deliveries."""


class _Listed(Record, frozen=True):
    data: tuple[ListedWebhook, ...]


@raises_svc_errors
@attrs.frozen
class Webhooks:
    """Routes of webhooks."""

    account: Account

    async def add(self, url: str, events: Sequence[str] = (), *, secret: str | None = None) -> NewWebhook:
        """Add an endpoint for the named events, or for all. Keep the answer's `secret`, which is not shown again.

        Not idempotent: after a lost answer, check the list.
        """
        body: dict[str, Any] = {"url": url, "events": list(events)}
        if secret is not None:
            body["secret"] = secret
        transport = self.account.transport
        return await self.account.authorised(
            lambda headers: transport.post("/v1/webhooks", NewWebhook, body, safe=False, headers=headers)
        )

    async def list(self) -> tuple[ListedWebhook, ...]:
        """Return the endpoints, oldest first."""
        transport = self.account.transport
        listed = await self.account.authorised(lambda headers: transport.get("/v1/webhooks", _Listed, headers=headers))
        return listed.data

    async def remove(self, webhook_id: str) -> None:
        """Remove an endpoint and its waiting messages."""
        transport = self.account.transport
        await self.account.authorised(
            lambda headers: transport.send("DELETE", _path(webhook_id), safe=False, headers=headers)
        )

    async def test(self, webhook_id: str) -> str:
        """Send a message of type `webhook.test`. Return its `webhook-id`."""
        transport = self.account.transport
        answer = await self.account.authorised(
            lambda headers: transport.send("POST", f"{_path(webhook_id)}/test", safe=False, headers=headers)
        )
        return read(answer, WebhookTested).id


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> str:
    """Check a message's signature and that it is at most five minutes old, and return its id.

    Process each id once. `headers` has lower-case names, or ignores case. Raises Refused.
    """
    return webhooks.verify(secret, headers, body, time.time() if now is None else now)


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{webhook_id}"
