"""The key that results are sealed to: made from the wallet's signature whenever it is needed, or given.

A job's result opens only with the key that its envelope named, so every key that a client knows is tried.
"""

from typing import Final

from common.box import SecretKey
from common.domains import Domains
from common.messages.sessions import ResultKey
from svc.core.typed_data import SigningRequest, request

PURPOSE: Final = "result key"


def to_sign(domains: Domains) -> SigningRequest:
    return request("result key", domains.results, ResultKey(PURPOSE))


def key_order(derived: SecretKey | None, given: SecretKey | None, *, given_first: bool) -> tuple[SecretKey, ...]:
    """The keys to open with; results are sealed to the first."""
    keys = (given, derived) if given_first else (derived, given)
    return tuple(key for key in keys if key is not None)
