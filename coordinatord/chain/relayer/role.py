"""Role of the relayer's account in the registries, read with the head.

Without it the account can post and settle nothing. Only the operator can mend that, so callers get a retryable 503,
settles wait in the queue, and everything continues as soon as the account has the role.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import msgspec
import structlog

from common import abi
from common.address_book import AddressBook
from common.scalars import hex_of
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.rpc.client import RpcCall, decode_result
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import View, hex_bytes, is_true

log = structlog.get_logger(__name__)

# Refusals of a sender without the role: of `post` and `settle`, and of `relay(bytes[])`.
LACKING: Final = frozenset({"NotRelayer", "SenderNotRelayer"})
# Kinds that any account may send, one by one.
WITHOUT_ROLE: Final = (RelayKind.FAIL, RelayKind.RECLAIM, RelayKind.CANCEL)
REMEDY: Final = "the registries' owner gives it: coordinatord market admin grant-relayer ADDRESS"

_IS_RELAYER: Final = abi.selector("isRelayer(address)")
_RETRY_AFTER: Final = 30  # seconds: a person has to act


def lacking() -> Retryable:
    """Return the error for callers. Its code is the specification's for a queue that does not move: the same request
    may be sent again."""
    message = "the coordinator's account has no relayer role at the moment; its operator is told: try again later"
    return Retryable("relay_unavailable", message, "relay_queue_timeout", _RETRY_AFTER)


def require_role(refusal: str | None) -> None:
    """Raise Retryable where the chain refused the sender, not what was sent."""
    if refusal in LACKING:
        raise lacking()


@attrs.define(slots=True)
class RelayerRole:
    """`missing`: names of the registries that do not know the account; None before the first answer."""

    account: bytes
    registries: Mapping[str, bytes]
    missing: tuple[str, ...] | None = None
    heard_at: float = -math.inf  # time.monotonic()

    @property
    def is_missing(self) -> bool:
        return bool(self.missing)

    def calls(self, block: str | Mapping[str, str] = "latest") -> list[RpcCall]:
        """Return the calls to send along with a reading of the head. `hear` takes the answers, in this order."""
        data = abi.call(_IS_RELAYER, abi.address(self.account))
        return [View(registry, data, "config_read", block=block).as_call() for registry in self.registries.values()]

    def hear(self, answers: Sequence[msgspec.Raw | RpcError]) -> None:
        """Learn the role from the answers to `calls`. An error among them changes nothing. Raise Retryable for an
        answer that is not hex."""
        words = [answer for answer in answers if not isinstance(answer, RpcError)]
        if len(words) != len(self.registries):
            return
        held = [is_true(hex_bytes(decode_result(word, str, "isRelayer"), "config_read")) for word in words]
        missing = tuple(name for name, has in zip(self.registries, held, strict=True) if not has)
        if bool(missing) != self.is_missing:
            self._tell(missing)
        self.missing = missing
        self.heard_at = time.monotonic()
        metrics.relayer_role.labels(hex_of(self.account)).set(not missing)

    def _tell(self, missing: tuple[str, ...]) -> None:
        if missing:
            log.warning("no relayer role", account=hex_of(self.account), missing_in=missing, remedy=REMEDY)
        else:
            log.info("relayer role given", account=hex_of(self.account))


def role_in(book: AddressBook, account: bytes) -> RelayerRole:
    registries = {
        "jobRegistry": book.job_registry,
        "providerRegistry": book.provider_registry,
        "askRegistry": book.ask_registry,
    }
    return RelayerRole(account, registries)
