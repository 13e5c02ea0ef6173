"""Risks to the provider's reputation, described in the words that `svcd check` uses too."""

from collections.abc import Collection, Iterable, Iterator

from common.box import SecretKey
from common.scalars import hex_of
from svcd.base.clock import MOST_SKEW, Clock
from svcd.base.errors import Unavailable
from svcd.config import ModelConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import MarketReads, ProviderRecord


def wrong_key(box: SecretKey | None, provider: ProviderRecord) -> str | None:
    """Jobs that are designated to a key that is not ours cannot be opened. Without a key none of them are claimed."""
    if box is None or provider.box_key == (ours := hex_of(box.public.raw)):
        return None
    theirs = provider.box_key or "none"
    return f"the box key is {ours}, the registry has {theirs}: `svcd identity` publishes ours, or put theirs in place"


def wrong_clock(clock: Clock) -> str | None:
    if clock.is_believed:
        return None
    way = "ahead of" if clock.ahead > 0 else "behind"
    return (
        f"this clock is {abs(clock.ahead):.0f} s {way} the coordinator's, and at most {MOST_SKEW:.0f} s are corrected:"
        " set it (timedatectl set-ntp true)"
    )


def wrong_windows(model: ModelConfig, allowed: Collection[int]) -> Iterator[tuple[int, str]]:
    """Windows that are offered and that no order can have, each with what to do."""
    for window in sorted(model.asks.keys() - frozenset(allowed)):
        known = ", ".join(map(str, sorted(allowed))) or "none"
        yield window, f"{model.name}: the market takes no window of {window} s; it takes {known}: change sla_seconds"


def wrong_name(model: str, unknown: str) -> str:
    return f"{model}: {unknown}: set models under [model.backend]"


def rival(provider_id: int, seen: str) -> str:
    remedy = "one wallet is one daemon: stop the other, or give this one a wallet of its own"
    return f"another daemon works as provider {provider_id} ({seen}); {remedy}"


async def allowed_windows(
    coordinator: MarketReads, chain: ChainReader | None, offered: Iterable[int]
) -> Collection[int] | None:
    """Windows that the market takes, by the coordinator, or those of the offered ones that the chain allows."""
    told = await coordinator.windows()
    if told is not None or chain is None:
        return told
    try:
        return [window for window in sorted(frozenset(offered)) if await chain.allows_window(window)]
    except Unavailable:  # jobs that are claimed wait for the node anyway
        return None
