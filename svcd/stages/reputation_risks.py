"""Describe risks to the provider's reputation, for the daemon and for `svcd check`."""

from collections.abc import Collection, Iterable, Iterator

import attrs

from common.box import SecretKey
from common.scalars import hex_of
from svcd.base.clock import MAX_SKEW_S, Clock
from svcd.base.errors import Unavailable
from svcd.config import ModelConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import MarketReader, ProviderRecord


@attrs.frozen(slots=True)
class Risk:
    """Risk to the provider's reputation, and the remedy."""

    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.detail}: {self.remedy}"


def wrong_key_risk(box: SecretKey | None, provider: ProviderRecord) -> Risk | None:
    """Return a risk if the registry's box key differs from the configured key.

    Clients seal designated jobs to the registry's key, and svcd could not open these jobs. Without a configured key,
    svcd claims no designated jobs, so there is no risk.
    """
    if box is None or provider.box_key == (ours := hex_of(box.public.raw)):
        return None
    theirs = provider.box_key or "none"
    remedy = "publish the configured key with `svcd identity`, or install the registered key"
    return Risk(f"the box key is {ours}, but the registry has {theirs}", remedy)


def wrong_clock_risk(clock: Clock) -> Risk | None:
    if clock.is_skew_plausible:
        return None
    direction = "ahead of" if clock.skew_s > 0 else "behind"
    seen = f"this clock is {abs(clock.skew_s):.0f} s {direction} the coordinator's"
    return Risk(f"{seen}, but svcd corrects at most {MAX_SKEW_S:.0f} s", "set the clock (timedatectl set-ntp true)")


def wrong_window_risks(model: ModelConfig, allowed: Collection[int]) -> Iterator[tuple[int, Risk]]:
    """Yield each offered window that the market does not allow, with its risk."""
    for window in sorted(model.asks.keys() - frozenset(allowed)):
        known = ", ".join(map(str, sorted(allowed))) or "none"
        detail = f"{model.name}: the market has no window of {window} s, only {known}"
        yield window, Risk(detail, "change sla_seconds")


def wrong_name_risk(model: str, explanation: str) -> Risk:
    return Risk(f"{model}: {explanation}", "set models under [model.backend]")


def other_daemon_risk(provider_id: int, observation: str) -> Risk:
    remedy = "stop the other daemon, or give this daemon another wallet"
    return Risk(f"another daemon works as provider {provider_id} ({observation})", remedy)


async def read_allowed_windows(
    coordinator: MarketReader, chain: ChainReader | None, offered: Iterable[int]
) -> Collection[int] | None:
    """Return the coordinator's list of windows, or otherwise the offered windows that the chain allows."""
    windows = await coordinator.read_windows()
    if windows is not None or chain is None:
        return windows
    try:
        return [window for window in sorted(frozenset(offered)) if await chain.allows_window(window)]
    except Unavailable:
        # Without the node, the windows are unknown. Report no risk, because no job runs before the node answers.
        return None
