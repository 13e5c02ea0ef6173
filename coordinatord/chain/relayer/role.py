"""Role of the relayer's account in the registries, read together with the head.

Without the role, the account can neither post nor settle. Only the operator can fix that, so callers get a retryable
503, settles stay queued, and relaying resumes as soon as the account has the role.
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
from coordinatord.chain.rpc.views import View, decode_hex, is_true

log = structlog.get_logger(__name__)

# Errors for a sender without the role. `post`, `claim` and `settle` raise the first, `relay(bytes[])` the second.
LACKING_ROLE_ERRORS: Final = frozenset({"NotRelayer", "SenderNotRelayer"})
# Kinds that an account without the role may send, each as a transaction of its own.
KINDS_WITHOUT_ROLE: Final = (RelayKind.FAIL, RelayKind.RECLAIM, RelayKind.CANCEL)
GRANT_ROLE_REMEDY: Final = "the registries' owner grants the role: coordinatord market admin grant-relayer ADDRESS"

_IS_RELAYER_SELECTOR: Final = abi.selector("isRelayer(address)")
# Long, because a person has to act.
_RETRY_AFTER_S: Final = 30


def lacking_role_error() -> Retryable:
    """Return the error for callers, who may safely retry. Its code is also that of a relay that waited too long in the
    queue."""
    message = "the coordinator's account lacks the relayer role, which its operator must grant: try again later"
    return Retryable("relay_unavailable", message, "relay_queue_timeout", _RETRY_AFTER_S)


def raise_if_role_lacking(refusal: str | None) -> None:
    """Raise Retryable when the chain refused the sender and not the op."""
    if refusal in LACKING_ROLE_ERRORS:
        raise lacking_role_error()


@attrs.define(slots=True)
class RelayerRole:
    """Role of an account. `missing_in` names the registries that do not accept the account as a relayer, or is None
    before the first answer."""

    account: bytes
    registries: Mapping[str, bytes]
    missing_in: tuple[str, ...] | None = None
    # Time of the last answer, by time.monotonic().
    read_at: float = -math.inf

    @property
    def is_missing(self) -> bool:
        return bool(self.missing_in)

    def role_calls(self, block: str | Mapping[str, str] = "latest") -> list[RpcCall]:
        """Return the calls to add to a read of the head. Pass their answers, in order, to `learn_role`."""
        data = abi.call_data(_IS_RELAYER_SELECTOR, abi.address(self.account))
        return [View(registry, data, "config_read", block=block).as_call() for registry in self.registries.values()]

    def learn_role(self, answers: Sequence[msgspec.Raw | RpcError]) -> None:
        """Learn the role from the answers to `role_calls`. If an answer is an error, change nothing.

        Raise Retryable for an answer that is not hex.
        """
        words = [answer for answer in answers if not isinstance(answer, RpcError)]
        if len(words) != len(self.registries):
            return
        held = [is_true(decode_hex(decode_result(word, str, "isRelayer"), "config_read")) for word in words]
        missing = tuple(name for name, has in zip(self.registries, held, strict=True) if not has)
        if missing and not self.is_missing:
            log.warning(
                "relayer role missing", account=hex_of(self.account), missing_in=missing, remedy=GRANT_ROLE_REMEDY
            )
        elif self.is_missing and not missing:
            log.info("relayer role granted", account=hex_of(self.account))
        self.missing_in = missing
        self.read_at = time.monotonic()
        metrics.relayer_role.labels(hex_of(self.account)).set(not missing)


def relayer_role_of(book: AddressBook, account: bytes) -> RelayerRole:
    registries = {
        "jobRegistry": book.job_registry,
        "providerRegistry": book.provider_registry,
        "askRegistry": book.ask_registry,
    }
    return RelayerRole(account, registries)
