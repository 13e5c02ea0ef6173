"""I5 by the token's transfers: from each party the registry received the cost of its jobs, and paid out what it owed.

violations = transfer_violations(log, registry)
assert violations == []
"""

from collections import Counter

import attrs

from common.scalars import hex_of
from tests.support.invariants.market_log import MarketLog, Told


@attrs.define
class _Due:
    """Tokens due from and to each party, by the registry's events."""

    collected: Counter[bytes] = attrs.field(factory=Counter)
    paid: Counter[bytes] = attrs.field(factory=Counter)
    _posts: dict[bytes, tuple[bytes, int]] = attrs.field(factory=dict)  # by job: owner and amount
    _operators: dict[int, bytes] = attrs.field(factory=dict)

    def enter(self, told: Told) -> None:
        v = told.values
        match told.name:
            case "ProviderRegistered" | "OperatorChanged":
                self._operators[v["providerId"]] = v["operator"]
            case "JobPosted":
                micro = v["rateIn"] * v["unitsIn"] + v["rateOut"] * v["unitsOut"]
                cap = max(1, (micro + 999_999) // 1_000_000)
                self._posts[v["jobId"]] = v["owner"], cap + cap * v["feeBps"] // 10_000 + v["gasFee"]
            case "JobClaimed":
                owner, amount = self._posts[v["jobId"]]
                self.collected[owner] += amount
            case "JobSettled":  # the treasury collects its share later, as a credit
                owner, _ = self._posts[v["jobId"]]
                self.paid[self._operators[v["providerId"]]] += v["cost"]
                self.paid[owner] += v["refund"]
            case "JobFailed" | "JobReclaimed":
                owner, amount = self._posts[v["jobId"]]
                self.paid[owner] += amount
            case "PayoutCredited":
                self.paid[v["party"]] -= v["amount"]
            case "CreditWithdrawn":
                self.paid[v["party"]] += v["amount"]


def transfer_violations(log: MarketLog, registry: bytes, *, donations: int = 0) -> list[str]:
    """Return each violation as a sentence. `donations`: tokens sent to the registry outside of jobs."""
    due = _Due()
    for told in log.events:
        due.enter(told)
    came, went = Counter[bytes](), Counter[bytes]()
    for transfer in log.transfers:
        v = transfer.values
        if v["to"] == registry:
            came[v["from"]] += v["value"]
        if v["from"] == registry:
            went[v["to"]] += v["value"]
    unasked = came.total() - due.collected.total()
    found = [] if unasked == donations else [f"I5: {unasked} tokens came to the registry that no claim collected"]
    if not donations:
        found += _differing(came, due.collected, "gave the registry", "its claimed jobs cost")
    return found + _differing(went, due.paid, "got of the registry", "is due to it")


def _differing(moved: Counter[bytes], due: Counter[bytes], did: str, should: str) -> list[str]:
    return [
        f"I5: {hex_of(party)} {did} {moved[party]} by the token's transfers, and {due[party]} {should}"
        for party in sorted(moved.keys() | due.keys())
        if moved[party] != due[party]
    ]
