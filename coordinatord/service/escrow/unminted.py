"""The answer of an instance that joins and was not handed a key yet."""

from coordinatord.trouble import Retryable


def unminted() -> Retryable:
    return Retryable("not_ready", "this escrow waits for its keys", "escrow_key_unminted", retry_after=1)
