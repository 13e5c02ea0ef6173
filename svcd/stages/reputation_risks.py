"""Describe risks to the provider's reputation, for the daemon and for `svcd check`."""

from collections.abc import Collection, Iterable, Iterator

from common.box import SecretKey
from common.scalars import hex_of
from svcd.base.clock import MOST_SKEW, Clock
from svcd.base.errors import Unavailable
from svcd.config import ModelConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import MarketReads, ProviderRecord


def wrong_key(box: SecretKey | None, provider: ProviderRecord) -> str | None:
    """Return a warning if the registry has another box key: designated jobs could not be opened.

    Without a box key designated jobs are not claimed, so there is no risk.
    """
    if box is None or provider.box_key == (ours := hex_of(box.public.raw)):
        return None
    theirs = provider.box_key or "none"
    return (
        f"the box key is {ours}, the registry has {theirs}: publish yours with `svcd identity`,"
        " or install the registered key"
    )


def wrong_clock(clock: Clock) -> str | None:
    if clock.is_believed:
        return None
    way = "ahead of" if clock.ahead > 0 else "behind"
    return (
        f"this clock is {abs(clock.ahead):.0f} s {way} the coordinator's, and at most {MOST_SKEW:.0f} s are corrected:"
        " set the clock (timedatectl set-ntp true)"
    )


def wrong_windows(model: ModelConfig, allowed: Collection[int]) -> Iterator[tuple[int, str]]:
    """Yield each offered window that the market does not allow, with the remedy."""
    for window in sorted(model.asks.keys() - frozenset(allowed)):
        known = ", ".join(map(str, sorted(allowed))) or "none"
        yield window, f"{model.name}: the market has no window of {window} s, only {known}: change sla_seconds"


def wrong_name(model: str, unknown: str) -> str:
    return f"{model}: {unknown}: set models under [model.backend]"


def rival(provider_id: int, seen: str) -> str:
    remedy = "stop it, or give this daemon another wallet"
    return f"another daemon works as provider {provider_id} ({seen}): {remedy}"


async def allowed_windows(
    coordinator: MarketReads, chain: ChainReader | None, offered: Iterable[int]
) -> Collection[int] | None:
    """Return the market's windows from the coordinator, or else the offered ones that the chain allows."""
    windows = await coordinator.windows()
    if windows is not None or chain is None:
        return windows
    try:
        return [window for window in sorted(frozenset(offered)) if await chain.allows_window(window)]
    except Unavailable:  # claimed jobs wait for the node in any case
        return None
