"""Routes of webhooks: add, list, remove, test. An endpoint is visible only to its owner."""

from typing import Any, Final

import attrs

from common.api import limits
from common.api.fields import Text
from common.api.webhooks import EXAMPLE_WEBHOOK_ID, NewWebhook, Webhook, WebhookList, WebhookRemoved, WebhookTested
from coordinatord.api.webhooks.endpoints import WebhookBody, WebhookEndpoints
from coordinatord.api.webhooks.endpoints_sql import Endpoint
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import Body, Parameter, Reply, Request, Route, malformed_replies


def _endpoint_members(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.disabled_at is not None:
        status = "disabled"
    elif endpoint.failing_since is not None:
        status = "failing"
    else:
        status = "new" if endpoint.last_attempt_at is None else "working"
    times = ("created_at", "disabled_at", "failing_since", "last_attempt_at")
    same = ("id", "url", "disabled_because", "last_status", "waiting", "delivered", "dropped")
    seconds = {name: int(at.timestamp()) if (at := getattr(endpoint, name)) is not None else None for name in times}
    return {
        "events": endpoint.wanted,
        "status": status,
        **seconds,
        **{name: getattr(endpoint, name) for name in same},
    }


def unavailable_response() -> Response:
    message = "this coordinator posts no webhooks; follow GET /evm/events"
    return responses.error(403, "invalid_request_error", message, code="webhooks_unavailable")


# Any text is accepted as an id. An unknown id is answered with 404.
_ID_PARAMETER: Final = {
    "id": Parameter(Text(limits.MAX_HEADER_VALUE_BYTES), "id of the endpoint", example=EXAMPLE_WEBHOOK_ID)
}
_COMMON_REPLIES: Final = (Reply(401, "invalid_session"), Reply(403, "webhooks_unavailable"))


@attrs.frozen(slots=True)
class WebhookRoutes:
    """`endpoints` is None if webhooks are switched off."""

    endpoints: WebhookEndpoints | None

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/webhooks",
                id="addWebhook",
                tag="Webhooks",
                about="Add a webhook: a URL that receives the events of this address's jobs and batches",
                details=(
                    "Messages are signed according to Standard Webhooks. Verify `webhook-signature`, reject a"
                    " `webhook-timestamp` older than five minutes, process each `webhook-id` once, and answer with a"
                    " status of 200 to 299 within 15 s. A message without such an answer is posted up to eight times in"
                    " a day and a half. A 410, or a day of failures, disables the endpoint. Only this answer shows the"
                    " secret."
                ),
                handler=self.add_webhook,
                body=Body.of(WebhookBody),
                session=True,
                replies=(
                    Reply(200, shape=NewWebhook, about="The endpoint, with its secret"),
                    *malformed_replies("too_many_webhooks", "webhooks_need_funds"),
                    *_COMMON_REPLIES,
                ),
            ),
            Route(
                method="GET",
                path="/v1/webhooks",
                id="listWebhooks",
                tag="Webhooks",
                about="List this address's webhooks with the state of their deliveries",
                handler=self.list_webhooks,
                session=True,
                replies=(Reply(200, shape=WebhookList, about="The endpoints, oldest first"), *_COMMON_REPLIES),
            ),
            Route(
                method="DELETE",
                path="/v1/webhooks/{id}",
                id="removeWebhook",
                tag="Webhooks",
                about="Remove a webhook and its waiting messages",
                details="A message that is being posted may still arrive.",
                handler=self.remove_webhook,
                segments=_ID_PARAMETER,
                session=True,
                replies=(
                    Reply(200, shape=WebhookRemoved, about="The webhook is removed"),
                    *_COMMON_REPLIES,
                    Reply(404),
                ),
            ),
            Route(
                method="POST",
                path="/v1/webhooks/{id}/test",
                id="testWebhook",
                tag="Webhooks",
                about="Post a message of type `webhook.test` to a webhook",
                details="Only one test message may wait at a time. GET /v1/webhooks shows the outcome.",
                handler=self.test_webhook,
                segments=_ID_PARAMETER,
                session=True,
                replies=(
                    Reply(200, shape=WebhookTested, about="The test message is queued"),
                    Reply(400, "webhook_disabled"),
                    *_COMMON_REPLIES,
                    Reply(404),
                    Reply(429, "busy"),
                ),
            ),
        ]

    async def add_webhook(self, request: Request) -> Response:
        if self.endpoints is None:
            return unavailable_response()
        endpoint, secret = await self.endpoints.add(request.owner, request.body)
        return responses.ok_no_store(NewWebhook(**_endpoint_members(endpoint), secret=secret))

    async def list_webhooks(self, request: Request) -> Response:
        if self.endpoints is None:
            return unavailable_response()
        endpoints = await self.endpoints.list_endpoints(request.owner)
        return responses.ok(WebhookList("list", [Webhook(**_endpoint_members(endpoint)) for endpoint in endpoints]))

    async def remove_webhook(self, request: Request) -> Response:
        if self.endpoints is None:
            return unavailable_response()
        webhook_id = request.path["id"]
        if not await self.endpoints.remove(request.owner, webhook_id):
            return responses.not_found(NoSuchObject("webhook"))
        return responses.ok(WebhookRemoved(webhook_id, "webhook.removed"))

    async def test_webhook(self, request: Request) -> Response:
        if self.endpoints is None:
            return unavailable_response()
        message_id = await self.endpoints.send_test(request.owner, request.path["id"])
        if message_id is None:
            return responses.not_found(NoSuchObject("webhook"))
        return responses.ok(WebhookTested(message_id, "webhook.test"))
