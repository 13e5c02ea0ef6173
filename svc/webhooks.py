"""Webhooks of this wallet: endpoints that events of its jobs and batches are posted to, and their verification."""

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
    """An endpoint, and how deliveries to it go."""


class _Listed(Record, frozen=True):
    data: tuple[ListedWebhook, ...]


@raises_svc_errors
@attrs.frozen
class Webhooks:
    account: Account

    async def add(self, url: str, events: Sequence[str] = (), *, secret: str | None = None) -> NewWebhook:
        """Have events posted to `url`: those named, or all. Keep the answer's `secret`: it is not told again. Made
        once: after a lost answer, look at the list."""
        body: dict[str, Any] = {"url": url, "events": list(events)}
        if secret is not None:
            body["secret"] = secret
        transport = self.account.transport
        return await self.account.authorised(
            lambda headers: transport.post("/v1/webhooks", NewWebhook, body, safe=False, headers=headers)
        )

    async def list(self) -> tuple[ListedWebhook, ...]:
        """The oldest first."""
        transport = self.account.transport
        listed = await self.account.authorised(lambda headers: transport.get("/v1/webhooks", _Listed, headers=headers))
        return listed.data

    async def remove(self, webhook_id: str) -> None:
        """With what waits for it."""
        transport = self.account.transport
        await self.account.authorised(
            lambda headers: transport.send("DELETE", _path(webhook_id), safe=False, headers=headers)
        )

    async def test(self, webhook_id: str) -> str:
        """Have a message of type `webhook.test` posted; its `webhook-id`."""
        transport = self.account.transport
        answer = await self.account.authorised(
            lambda headers: transport.send("POST", f"{_path(webhook_id)}/test", safe=False, headers=headers)
        )
        return read(answer, WebhookTested).id


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> str:
    """The id of a message that was received, once its signature was found to be right and of the last five minutes; act
    once on each. Raises Refused. `headers` by names in lower case, or a mapping that does not care."""
    return webhooks.verify(secret, headers, body, time.time() if now is None else now)


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{webhook_id}"
