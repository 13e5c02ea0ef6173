"""Conformance of a client: it buys one job in each of several scripted markets.

A client passes if it returns the results that exist, shows no result of another job, signs only what the pages say, and
never pays twice.
"""

import json
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import attrs

from common.scalars import hex_of
from tests.conformance.client_market import ClientMarket, Twist
from tests.conformance.faulty_markets import PURCHASES, Purchase
from tests.conformance.serving import serving
from tests.conformance.verdicts import Report

# Run the client with an environment. Return its exit code and output.
Buy = Callable[[Mapping[str, str]], Awaitable[tuple[int, str]]]
_PROMISES: Final = (
    ("orders", "signed by the owner in the domain of the market, job_id, expires_at within a day",
     "protocol/guide.md#a-buyer-in-seven-calls"),
    ("payments", "ReceiveWithAuthorization over the amount, to the registry, nonce the job id",
     "protocol/formats.md#job-id-and-payment"),
    ("containers", "commit to c, open with the recipient's key, a canonical envelope, units_in by the formula",
     "protocol/formats.md#container-v1"),
    ("bodies", "strict JSON", "protocol/formats.md#strict-json"),
)  # fmt: skip


@attrs.frozen
class _Bought:
    """Outcome of one purchase."""

    market: ClientMarket
    wrong: str | None
    gave_up: bool

    def untried(self, purchase: Purchase) -> str | None:
        """Explain why nothing can be judged, or return None."""
        if self.wrong is not None:
            return None
        if not self.market.met and purchase.twist != Twist():
            return "it did not come to that"
        return "it gave up after one submission: nothing shows how it would send again" if self.gave_up else None


@attrs.define
class ClientTrial:
    """`buy` runs the client once; `buy_open` runs it for an open bid, where it makes any. `at_once`: runs side by
    side."""

    report: Report
    buy: Buy
    buy_open: Buy | None = None
    model: str = "demo/text-small"
    patience: float = 60.0
    at_once: int = 4
    purchases: Sequence[Purchase] = PURCHASES

    async def run(self) -> Report:
        found: dict[str, _Bought] = {}
        limiter = anyio.CapacityLimiter(self.at_once)

        async def one(purchase: Purchase, buy: Buy) -> None:
            async with limiter:
                market = ClientMarket(model=self.model, twist=purchase.twist)
                found[purchase.tried] = await self._bought(purchase, market, buy)

        async with anyio.create_task_group() as tasks:
            for purchase in self.purchases:
                if (buy := self.buy_open if purchase.open_bid else self.buy) is not None:
                    tasks.start_soon(one, purchase, buy)
        for purchase in self.purchases:
            bought = found.get(purchase.tried)
            if bought is None:
                self.report.leave("purchases", purchase.tried, "no command for open bids", purchase.page)
            elif (untried := bought.untried(purchase)) is not None:
                self.report.leave("purchases", purchase.tried, untried, purchase.page)
            else:
                self.report.judge("purchases", purchase.tried, purchase.said, bought.wrong, purchase.page)
        markets = [bought.market for bought in found.values()]
        for promise, expected, page in _PROMISES:
            faults = [fault for market in markets for fault in market.faults.get(promise, [])]
            if not faults and not any(market.submissions for market in markets):
                self.report.leave("promises", promise, "nothing was submitted", page)
                continue
            self.report.judge("promises", promise, expected, faults[0] if faults else None, page)
        return self.report

    async def _bought(self, purchase: Purchase, market: ClientMarket, buy: Buy) -> _Bought:
        began = time.monotonic()
        async with serving(market.handle) as url:
            with tempfile.TemporaryDirectory() as folder:
                addresses = Path(folder) / "addresses.json"
                addresses.write_text(json.dumps(market.book.as_json()), encoding="utf-8")
                environment = {
                    "SVC_BASE_URL": url,
                    "SVC_PIN_GATEWAY": url,
                    "SVC_ADDRESSES_FILE": str(addresses),
                    "SVC_ADDRESSES": addresses.read_text(encoding="utf-8"),
                    "SVC_MODEL": market.model,
                    "SVC_INPUT": market.text,
                    "SVC_WALLET_KEY": hex_of(secrets.token_bytes(32)),
                    "SVC_KNOWN_MARKETS": "",
                }
                with anyio.move_on_after(self.patience):
                    code, wrote = await buy(environment)
                    return _Bought(market, purchase.wrong(market, code, wrote), purchase.gave_up(market, wrote))
        return _Bought(market, f"no end after {time.monotonic() - began:.0f} s", gave_up=False)
