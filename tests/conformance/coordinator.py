"""Conformance of a coordinator, black-box over HTTP: reads, a throw-away wallet's writes, and purchases."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import attrs
import httpx

from common.refusal import Refused
from common.secp256k1 import Wallet
from tests.conformance.asking import TriedCoordinator
from tests.conformance.batches import TriedBatches
from tests.conformance.buyer import Buyer, book_of
from tests.conformance.operations import Operations
from tests.conformance.purchases import Purchases
from tests.conformance.quotes import Quotes
from tests.conformance.reads import Reads
from tests.conformance.sessions import SessionTrials
from tests.conformance.uploads import UploadTrials
from tests.conformance.verdicts import Report

_SPENDING: Final = "--spend was not given"


@attrs.frozen
class Trial:
    """Options of a trial. `spender` is a wallet with a little of the payment token, which is spent. `model` is bought,
    by default the first of the catalogue."""

    spender: Wallet | None = None
    model: str | None = None
    gateway: str | None = None


async def try_coordinator(http: httpx.AsyncClient, trial: Trial, report: Report) -> Report:
    """Run every check and add the rows to `report`."""
    coordinator = TriedCoordinator(http, report)
    reads = Reads(coordinator)
    await reads.run()
    try:
        chain = book_of(reads.chain)
    except (Refused, KeyError, TypeError, ValueError):
        report.leave("sessions", "everything that is signed", "GET /evm/chain tells no deployment to sign for", "")
        coordinator.judge_headers()
        return report
    buyer, other = (Buyer(Wallet(secrets.token_bytes(32)), chain) for _ in range(2))
    await SessionTrials(coordinator, buyer, other).run()
    if buyer.token and other.token:
        await UploadTrials(coordinator, buyer, other).run()
        await TriedBatches(coordinator, buyer, other).run()
        await Operations(coordinator, buyer).run()
    named = _named(reads.models, trial.model)
    if named is None:
        report.leave("quotes", "quotes and orders", f"there is no model {trial.model or ''}".rstrip(), "")
    else:
        name, model_id = named
        await Quotes(coordinator, buyer, model_id, reads.chain["token_domain"]).run()
        if trial.spender is None:
            report.leave("purchases", "a job, its cancellation, a batch", _SPENDING, "")
        else:
            spender = Buyer(trial.spender, chain)
            quotes = Quotes(coordinator, spender, model_id, reads.chain["token_domain"])
            await Purchases(coordinator, quotes, name, trial.gateway).run()
    coordinator.judge_headers()
    return report


def _named(models: Sequence[dict[str, Any]], wanted: str | None) -> tuple[str, int] | None:
    for model in models:
        if model["svc"]["enabled"] and wanted in (None, model["id"]):
            return model["id"], int(model["svc"]["model_id"])
    return None
