"""`svcd status`: what the running daemon says of itself, and what its journal holds."""

import sqlite3
import time
from contextlib import closing
from typing import Final

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families

from common.daemon.process import Fatal
from common.domains import Domains
from common.plain_answers import IDENTITY
from common.refusal import Refused
from common.scalars import hex_of
from svcd.base.errors import Unavailable
from svcd.base.timings import Clock
from svcd.config import DaemonConfig, Whereabouts
from svcd.coordinator.client import Coordinator, read_deployment
from svcd.coordinator.outcomes import OpMined, describe
from svcd.coordinator.requests import Requests
from svcd.coordinator.sessions import OpSigner, ProviderSessions, SignInRefused
from svcd.journal.entries import read_counts
from svcd.journal.journal import JOURNAL_FILE
from svcd.operator.check import Checked
from svcd.payload.gateway import require_unencoded
from svcd.stages.health import REASON_HEADER

_PATIENCE: Final = 5.0
_LONGEST_ANSWER: Final = 8 << 20
_SHOWN: Final = {
    "svcd_jobs_claimed_total": "claimed since start",
    "svcd_jobs_settled_total": "settled since start",
    "svcd_capacity_granted": "slots granted",
    "svcd_capacity_free": "slots free",
    "svcd_asks_published": "asks on the book",
    "svcd_model_free": "free at the last poll",
    "svcd_backend_load": "load",
    "svcd_bid_floor_discount_pct": "discount, percent",
}


def look(daemon: Whereabouts) -> list[Checked]:
    return [*_daemon(daemon), *_journal(daemon)]


def _daemon(daemon: Whereabouts) -> list[Checked]:
    if not daemon.metrics_port:
        return [Checked("daemon", None, "serves no metrics (metrics.port is 0)")]
    host = f"[{daemon.metrics_host}]" if ":" in daemon.metrics_host else daemon.metrics_host
    base = f"http://{host}:{daemon.metrics_port}"
    try:
        with httpx.Client(base_url=base, timeout=_PATIENCE, trust_env=False) as http:
            (health, body), (_, text) = _get(http, "/healthz"), _get(http, "/metrics")
    except httpx.HTTPError as failure:
        return [Checked("daemon", False, f"does not answer on {base} ({type(failure).__name__})")]
    reason = health.headers.get(REASON_HEADER)
    summary = body.strip() if reason is None else f"{body.strip()}: {reason}"
    findings = [Checked("daemon", health.status_code == httpx.codes.OK, summary)]
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "svcd_jobs_failed_total" and sample.value:
                findings.append(Checked(f"failed since start: {sample.labels['reason']}", None, f"{sample.value:g}"))
            elif sample.name in _SHOWN:
                labels = " ".join(sample.labels.values())
                findings.append(Checked(f"{_SHOWN[sample.name]} {labels}".rstrip(), None, f"{sample.value:g}"))
    return findings


def _get(http: httpx.Client, path: str) -> tuple[httpx.Response, str]:
    """The answer and its text. Any other program may listen there."""
    with http.stream("GET", path, headers=dict(IDENTITY)) as response:
        require_unencoded(response)
        body = b""
        for piece in response.iter_raw():
            body += piece
            if len(body) > _LONGEST_ANSWER:
                raise httpx.DecodingError(f"an answer of more than {_LONGEST_ANSWER} bytes", request=response.request)
        return response, body.decode("utf-8", "replace")


def _journal(daemon: Whereabouts) -> list[Checked]:
    path = daemon.state_directory / JOURNAL_FILE
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            counts = read_counts(connection)
    except sqlite3.OperationalError as absent:
        return [Checked("journal", None, f"{path}: {absent}")]
    except sqlite3.DatabaseError as broken:
        return [Checked("journal", False, f"{path}: {broken}")]
    return [
        Checked(f"journal: {state}{f' ({reason})' if reason else ''}", None, str(count))
        for (state, reason), count in counts.items()
    ] or [Checked("journal", None, "no jobs yet")]


# `svcd identity`: tells the registry which box key orders are sealed to, with whatever evidence the operator has.

LONGEST_EVIDENCE: Final = 32_768
_IDENTITY_PATIENCE: Final = 120.0
_AHEAD_S: Final = 60


async def publish_identity(config: DaemonConfig, transport: httpx.AsyncBaseTransport | None = None) -> str:
    """What was published; Fatal when it was not."""
    box = config.box
    if box is None:
        raise Fatal("no box key is configured: name one under [keys], as box_file, box_env or box_credential")
    evidence = await trio.to_thread.run_sync(_evidence, config)
    async with httpx.AsyncClient(transport=transport, timeout=_IDENTITY_PATIENCE, trust_env=False) as http:
        requests = Requests(http, config.coordinator_url)
        try:
            deployment = await read_deployment(requests)
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None
        signer = OpSigner(config.wallet, Domains.of(deployment))
        coordinator = Coordinator(requests, ProviderSessions(requests, signer, Clock()))
        # Newer than the registration, whose block's time may be ahead of this clock.
        op = signer.set_identity(box.public.raw, evidence, int(time.time()) + _AHEAD_S)
        outcome = await coordinator.run(op, trio.current_time() + _IDENTITY_PATIENCE)
    if isinstance(outcome, SignInRefused):
        raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {outcome.advice}")
    if not (isinstance(outcome, OpMined) and outcome.succeeded):
        raise Fatal(f"the identity was not published: {describe(outcome)}")
    return f"{signer.address} published box key {hex_of(box.public.raw)} with {len(evidence)} bytes of evidence"


def _evidence(config: DaemonConfig) -> bytes:
    if config.evidence_file is None:
        return b""
    try:
        evidence = config.evidence_file.read_bytes()
    except OSError as broken:
        raise Fatal(f"{config.evidence_file}: {broken.strerror}") from None
    if len(evidence) > LONGEST_EVIDENCE:
        raise Fatal(f"{config.evidence_file} has {len(evidence)} bytes; evidence has at most {LONGEST_EVIDENCE}")
    return evidence
