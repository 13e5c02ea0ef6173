"""Command `svcd identity`: publish the box key that orders are sealed to, with the operator's evidence."""

import time
from typing import Final

import httpx
import structlog
import trio

from common.bundle import announcement
from common.canonical_json import canonical
from common.daemon.process import Fatal
from common.domains import Domains
from common.refusal import Refused
from common.scalars import hex_of
from common.strict_json import parse
from svc.wire.connections import open_client
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig
from svcd.coordinator.client import Coordinator, read_deployment, transport_of
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import OpMined, describe
from svcd.coordinator.sessions import SignInRefused, sessions_of

log = structlog.get_logger(__name__)

MAX_EVIDENCE_BYTES: Final = 32_768
_AHEAD_S: Final = 60  # added to the time, because the registration's block may be ahead of this clock
_IDENTITY_TIMEOUT_S: Final = 120.0


async def publish_identity(config: DaemonConfig, transport: httpx.AsyncBaseTransport | None = None) -> str:
    """Publish the identity, and return a summary. Raise `Fatal` if it was not published."""
    box = config.box
    if box is None:
        raise Fatal("no box key is configured: set box under [keys]")
    evidence = await trio.to_thread.run_sync(_evidence, config)
    async with open_client(transport=transport, base_url=config.coordinator_url, timeout=_IDENTITY_TIMEOUT_S) as http:
        to_coordinator = transport_of(http)
        try:
            deployment = await read_deployment(to_coordinator)
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None
        signer = OpSigner(config.wallet, Domains.of(deployment))
        coordinator = Coordinator(to_coordinator, sessions_of(to_coordinator, signer))
        op = signer.set_identity(box.public.raw, evidence, int(time.time()) + _AHEAD_S)
        outcome = await coordinator.run(op, trio.current_time() + _IDENTITY_TIMEOUT_S)
    if isinstance(outcome, SignInRefused):
        raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {outcome.advice}")
    if not (isinstance(outcome, OpMined) and outcome.succeeded):
        raise Fatal(f"the identity was not published: {describe(outcome)}")
    return f"{signer.address} published box key {hex_of(box.public.raw)} with {len(evidence)} bytes of evidence"


def _evidence(config: DaemonConfig) -> bytes:
    """Return the operator's evidence. Add the announcement of bundles if it is a JSON object."""
    if config.evidence_file is None:
        return canonical(announcement())
    try:
        evidence = config.evidence_file.read_bytes()
    except OSError as broken:
        raise Fatal(f"{config.evidence_file}: {broken.strerror}") from None
    try:
        fields = parse(evidence)
    except Refused:
        fields = None
    if isinstance(fields, dict):
        evidence = canonical(fields | announcement())
    else:
        log.warning("bundles not announced", reason="the evidence is not a JSON object", file=str(config.evidence_file))
    if len(evidence) > MAX_EVIDENCE_BYTES:
        raise Fatal(f"{config.evidence_file} has {len(evidence)} bytes; evidence has at most {MAX_EVIDENCE_BYTES}")
    return evidence
