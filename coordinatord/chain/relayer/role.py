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
from coordinatord.chain.rpc.views import View, hex_bytes, is_true

log = structlog.get_logger(__name__)

# Errors for a sender without the role: of `post` and `settle`, and of `relay(bytes[])`.
LACKING: Final = frozenset({"NotRelayer", "SenderNotRelayer"})
# Kinds that any account may send, one by one.
WITHOUT_ROLE: Final = (RelayKind.FAIL, RelayKind.RECLAIM, RelayKind.CANCEL)
REMEDY: Final = "the registries' owner gives it: coordinatord market admin grant-relayer ADDRESS"

_IS_RELAYER: Final = abi.selector("isRelayer(address)")
# Seconds, because a person has to act.
_RETRY_AFTER_S: Final = 30


def lacking() -> Retryable:
    """Return the error for callers, with the specification's code for a queue that does not move: a retry is safe."""
    message = (
        "the coordinator's account has no relayer role at the moment; its operator has been notified: try again later"
    )
    return Retryable("relay_unavailable", message, "relay_queue_timeout", _RETRY_AFTER_S)


def require_role(refusal: str | None) -> None:
    """Raise Retryable when the chain refused the sender and not the op."""
    if refusal in LACKING:
        raise lacking()


@attrs.define(slots=True)
class RelayerRole:
    """Role of an account. `missing` names the registries that do not know the account. None means no answer yet."""

    account: bytes
    registries: Mapping[str, bytes]
    missing: tuple[str, ...] | None = None
    # By time.monotonic().
    heard_at: float = -math.inf

    @property
    def is_missing(self) -> bool:
        return bool(self.missing)

    def calls(self, block: str | Mapping[str, str] = "latest") -> list[RpcCall]:
        """Return the calls to add to a read of the head. Pass their answers, in order, to `hear`."""
        data = abi.call(_IS_RELAYER, abi.address(self.account))
        return [View(registry, data, "config_read", block=block).as_call() for registry in self.registries.values()]

    def hear(self, answers: Sequence[msgspec.Raw | RpcError]) -> None:
        """Learn the role from the answers to `calls`. An error among them changes nothing.

        Raise Retryable for an answer that is not hex.
        """
        words = [answer for answer in answers if not isinstance(answer, RpcError)]
        if len(words) != len(self.registries):
            return
        held = [is_true(hex_bytes(decode_result(word, str, "isRelayer"), "config_read")) for word in words]
        missing = tuple(name for name, has in zip(self.registries, held, strict=True) if not has)
        if bool(missing) != self.is_missing:
            self._log_change(missing)
        self.missing = missing
        self.heard_at = time.monotonic()
        metrics.relayer_role.labels(hex_of(self.account)).set(not missing)

    def _log_change(self, missing: tuple[str, ...]) -> None:
        if missing:
            log.warning("relayer role missing", account=hex_of(self.account), missing_in=missing, remedy=REMEDY)
        else:
            log.info("relayer role granted", account=hex_of(self.account))


def role_in(book: AddressBook, account: bytes) -> RelayerRole:
    registries = {
        "jobRegistry": book.job_registry,
        "providerRegistry": book.provider_registry,
        "askRegistry": book.ask_registry,
    }
    return RelayerRole(account, registries)
