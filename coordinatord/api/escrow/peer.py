"""Pull escrow keys from a peer instance through POST /handover.

The transport is not trusted. The peer seals the keys to a key pair that lives for one request. This instance signs the
request with an operator key, and accepts only keys that are signed by an operator known to this instance.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import anyio
import attrs
import msgspec

from common.api.escrow import HandedOverShape
from common.escrow_handover import Handover
from common.messages.escrow import HandoverAuth, HandoverKeys
from common.refusal import Refused
from common.scalars import hex_of, read_base64
from common.strict_json import DECODE_ERRORS
from coordinatord.api.escrow.custody import mock_evidence
from coordinatord.api.escrow.generations import Generation
from coordinatord.api.escrow.handover import OperatorKeys
from coordinatord.api.escrow.keys import KeyPair, wipe
from coordinatord.base.clock import Clock
from coordinatord.base.http_client import HttpClient, HttpResponse, NoResponse, RejectedResponse, open_http

# Timeout of a connection, and of reading the answer.
_PULL_TIMEOUT_S: Final = 10.0
_HEADERS: Final = {"content-type": "application/json"}
# More than the base64 of the largest message.
_MAX_ANSWER_BYTES: Final = 4 << 20


class _ErrorMembers(msgspec.Struct):
    message: str
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorMembers


@attrs.frozen(slots=True)
class FailedPull:
    """Failed pull. `is_final` means that the peer refuses the request, so that a retry fails too."""

    reason: str
    is_final: bool


@attrs.frozen(slots=True)
class Peer:
    http: HttpClient
    url: str
    operators: OperatorKeys
    release_ordinal: int
    clock: Clock

    async def pull_keys(self) -> list[Generation] | FailedPull:
        """Return the peer's keys, or the reason of a failure. The caller must keep or erase the keys."""
        channel = KeyPair.generate()
        issued_at = int(self.clock())
        try:
            request = msgspec.json.encode(self._request_body(channel, issued_at))
            async with self.http("POST", f"{self.url}/handover", _HEADERS, (request,)) as reply:
                with anyio.fail_after(_PULL_TIMEOUT_S):
                    body = await reply.read(_MAX_ANSWER_BYTES)
            if reply.status != HTTPStatus.OK:
                return _failed_pull(reply, body)
            return self._open_answer(channel, issued_at, msgspec.json.decode(body, type=HandedOverShape))
        except (*DECODE_ERRORS, Refused, RejectedResponse) as error:
            return FailedPull(f"the peer's answer is not a handover: {error}", is_final=False)
        except NoResponse as error:
            return FailedPull(f"the peer does not answer: {error}", is_final=False)
        except TimeoutError:
            return FailedPull("the peer answers too slowly", is_final=False)
        finally:
            channel.erase()

    def _request_body(self, channel: KeyPair, issued_at: int) -> dict[str, object]:
        evidence = mock_evidence(channel.public, self.release_ordinal)
        return {
            "evidence": {
                "type": evidence.type,
                "report_data": evidence.report_data.hex(),
                "debug": evidence.debug,
                "release": evidence.release,
                "measurement": evidence.measurement.hex(),
                "tcb": evidence.tcb,
                "quote": evidence.quote,
            },
            "channel_pubkey": channel.public.raw.hex(),
            "issued_at": issued_at,
            "operator_signature": hex_of(self.operators.sign(HandoverAuth(channel.public.raw, issued_at))),
        }

    def _open_answer(self, channel: KeyPair, issued_at: int, answer: HandedOverShape) -> list[Generation] | FailedPull:
        """Open the peer's message. Raise Refused for malformed bytes."""
        message = channel.open(read_base64(answer.keys_sealed, _MAX_ANSWER_BYTES, "keys_sealed"))
        if message is None:
            return FailedPull("the peer's keys are not sealed to this request", is_final=False)
        try:
            handover = Handover.parse(message)
        finally:
            wipe(message)
        keys_message = HandoverKeys(channel.public.raw, issued_at, handover.content)
        trusted = self.operators.recover_signer(keys_message, handover.signature) in self.operators.addresses
        claimed = (len(handover.keys), handover.release)
        wipe(handover.content)
        if not trusted or claimed != (answer.key_count, answer.holder_release):
            for key in handover.keys:
                wipe(key.secret)
            return FailedPull("the peer's keys are not signed by an operator of this escrow", is_final=False)
        return [Generation(KeyPair(key.secret), key.announced_from_ms) for key in handover.keys]


@asynccontextmanager
async def open_peer(url: str, operators: OperatorKeys, release: int, clock: Clock) -> AsyncIterator[Peer]:
    """Open an HTTP client for one peer."""
    async with open_http(connections=1, timeout_s=_PULL_TIMEOUT_S) as http:
        yield Peer(http, url, operators, release, clock)


def _failed_pull(reply: HttpResponse, body: bytes) -> FailedPull:
    final = reply.headers.get("x-svc-retryable") == "false"
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except DECODE_ERRORS:
        return FailedPull(f"the peer answers {reply.status}", final)
    return FailedPull(f"the peer answers {reply.status} {error.code or error.message}", final)
