"""`svcd identity`: publish the box key, to which clients seal orders, with the operator's evidence."""

import time
from typing import Final

import httpx
import structlog
import trio

from common import bundle
from common.canonical_json import canonical
from common.daemon.process import Fatal
from common.domains import Domains
from common.refusal import Refused
from common.scalars import hex_of
from common.strict_json import parse
from common.tab import terms
from svc.wire.connections import open_client
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig
from svcd.coordinator.client import Coordinator, open_transport, read_deployment
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import OpMined, describe_outcome
from svcd.coordinator.sessions import SignInRefused, provider_sessions

log = structlog.get_logger(__name__)

MAX_EVIDENCE_BYTES: Final = 32_768
_BLOCK_TIME_LEAD_S: Final = 60  # added to the signed time, because the chain's time may be ahead of this clock
_IDENTITY_TIMEOUT_S: Final = 120.0


async def publish_identity(config: DaemonConfig, transport: httpx.AsyncBaseTransport | None = None) -> str:
    """Publish the identity, and return a summary. Raise `Fatal` if the identity was not published."""
    box = config.box
    if box is None:
        raise Fatal("no box key is configured: set box under [keys]")
    evidence = await trio.to_thread.run_sync(_build_evidence, config)
    async with open_client(transport=transport, base_url=config.coordinator_url, timeout=_IDENTITY_TIMEOUT_S) as http:
        to_coordinator = open_transport(http)
        try:
            deployment = await read_deployment(to_coordinator)
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None
        signer = OpSigner(config.wallet, Domains.of(deployment))
        coordinator = Coordinator(to_coordinator, provider_sessions(to_coordinator, signer))
        op = signer.sign_set_identity(box.public.raw, evidence, int(time.time()) + _BLOCK_TIME_LEAD_S)
        outcome = await coordinator.send_op(op, trio.current_time() + _IDENTITY_TIMEOUT_S)
    if isinstance(outcome, SignInRefused):
        raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {outcome.operator_message}")
    if not (isinstance(outcome, OpMined) and outcome.succeeded):
        raise Fatal(f"the identity was not published: {describe_outcome(outcome)}")
    return f"{signer.address} published box key {hex_of(box.public.raw)} with {len(evidence)} bytes of evidence"


def _build_evidence(config: DaemonConfig) -> bytes:
    """Return the evidence to register.

    Without an evidence file, the evidence has only the fields that announce bundles and tabs. If the file has a JSON
    object, add these fields to the object.
    """
    announcements = bundle.announcement() | terms.announcement()
    if config.evidence_file is None:
        return canonical(announcements)
    try:
        evidence = config.evidence_file.read_bytes()
    except OSError as broken:
        raise Fatal(f"keys.evidence_file {config.evidence_file} cannot be read ({broken.strerror})") from None
    try:
        fields = parse(evidence)
    except Refused:
        fields = None
    if isinstance(fields, dict):
        evidence = canonical(fields | announcements)
    else:
        log.warning(
            "bundles and tabs not announced", reason="the evidence is not a JSON object", file=str(config.evidence_file)
        )
    if len(evidence) > MAX_EVIDENCE_BYTES:
        raise Fatal(f"{config.evidence_file} has {len(evidence)} bytes; evidence may have at most {MAX_EVIDENCE_BYTES}")
    return evidence
