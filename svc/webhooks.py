"""Manage this wallet's webhooks, and verify their messages."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from common import webhooks
from common.api.webhooks import NewWebhook, WebhookFields, WebhookTested
from svc.account import Account
from svc.error_conversion import raises_svc_errors
from svc.records import Record
from svc.wire.transport import read_record


class ListedWebhook(WebhookFields, frozen=True):
    """Webhook endpoint, with the state of its deliveries."""


class _WebhookList(Record, frozen=True):
    data: tuple[ListedWebhook, ...]


@raises_svc_errors
@attrs.frozen
class Webhooks:
    """Manages the webhooks of this wallet."""

    account: Account

    async def add(self, url: str, events: Sequence[str] = (), *, secret: str | None = None) -> NewWebhook:
        """Add an endpoint for the named events, or for all events. The answer has the `secret`, which no later
        answer contains.

        The call is not idempotent. If the answer is lost, check `list` before you add the endpoint again.
        """
        body: dict[str, Any] = {"url": url, "events": list(events)}
        if secret is not None:
            body["secret"] = secret
        transport = self.account.transport
        return await self.account.authorised(
            lambda headers: transport.post("/v1/webhooks", NewWebhook, body, retry=False, headers=headers)
        )

    async def list(self) -> tuple[ListedWebhook, ...]:
        """Return the endpoints, oldest first."""
        transport = self.account.transport
        listed = await self.account.authorised(
            lambda headers: transport.get("/v1/webhooks", _WebhookList, headers=headers)
        )
        return listed.data

    async def remove(self, webhook_id: str) -> None:
        """Remove an endpoint and its waiting messages."""
        transport = self.account.transport
        await self.account.authorised(
            lambda headers: transport.send("DELETE", _webhook_path(webhook_id), retry=False, headers=headers)
        )

    async def test(self, webhook_id: str) -> str:
        """Send a message of type `webhook.test`. Return the message's `webhook-id`."""
        transport = self.account.transport
        answer = await self.account.authorised(
            lambda headers: transport.send("POST", f"{_webhook_path(webhook_id)}/test", retry=False, headers=headers)
        )
        return read_record(answer, WebhookTested).id


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> str:
    """Check the signature and the age of a message (at most five minutes), and return the message's id.

    Process each id only once. `headers` must have lower-case names or ignore case. Raises Refused.
    """
    return webhooks.verify(secret, headers, body, time.time() if now is None else now)


def _webhook_path(webhook_id: str) -> str:
    return f"/v1/webhooks/{webhook_id}"
