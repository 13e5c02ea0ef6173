"""Look up the market for `svcd init`: its models, windows and prices."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import httpx

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.refusal import Refused
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Floors, MarketReader, open_transport, read_deployment

# Windows to propose if the coordinator lists neither the market's windows nor any ask.
_DEFAULT_WINDOWS_S: Final = (3600, 86400)
_MIN_PROPOSED_WINDOW_S: Final = 300  # shorter windows may be too short for a model


@attrs.frozen(slots=True)
class ReportedMarket:
    """Market as the coordinator reports it. `windows_s` has the windows that `svcd init` proposes."""

    address_book: AddressBook
    gateway: str | None
    model_ids: Mapping[str, int]
    windows_s: tuple[int, ...]
    price_floors: Floors  # by model id and window


async def read_market(http: httpx.AsyncClient) -> ReportedMarket:
    """Read the market at the client's `base_url`. Raise `Fatal` if no coordinator answers there."""
    url, transport = str(http.base_url).rstrip("/"), open_transport(http)
    coordinator = MarketReader(transport)
    try:
        book = await read_deployment(transport)
        models, floors = await coordinator.read_model_ids(), await coordinator.read_floors()
        allowed = await coordinator.read_windows()
        gateway = await coordinator.read_gateway_url()
    except Unavailable as unavailable:
        raise Fatal(f"cannot read the market from the coordinator at {url}: {unavailable}") from None
    except Refused as wrong:
        raise Fatal(f"{url} is not a coordinator: {wrong}") from None
    asked = {window for _, window in floors}
    known = allowed if allowed is not None else asked or frozenset(_DEFAULT_WINDOWS_S)
    windows = tuple(sorted(window for window in known if window >= _MIN_PROPOSED_WINDOW_S)) or tuple(sorted(known))
    return ReportedMarket(book, gateway, models, windows, floors)


def match_models(market_names: Iterable[str], served_names: Sequence[str]) -> dict[str, str]:
    """Return the server's name for each market model. Names match if they are equal, or equal after the last slash."""
    found: dict[str, str] = {}
    for name in market_names:
        exact = [each for each in served_names if each == name]
        alike = [each for each in served_names if _base_name(each) == _base_name(name)]
        if exact or alike:
            found[name] = (exact or alike)[0]
    return found


def _base_name(name: str) -> str:
    return name.removesuffix(":latest").rsplit("/", 1)[-1].lower()
