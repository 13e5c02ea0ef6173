"""`svcd identity`: tells the registry which box key orders are sealed to, with whatever evidence the operator has."""

import time
from typing import Final

import httpx
import trio

from common.refusal import Refused
from common.scalars import hex_of
from svcd.clock import Clock
from svcd.config import Config
from svcd.coordinator.client import Coordinator, read_chain
from svcd.coordinator.outcomes import Mined, describe
from svcd.coordinator.requests import Requests
from svcd.coordinator.sessions import Sessions, SignInRefused
from svcd.coordinator.signer import Signer
from svcd.trouble import Fatal, Unavailable

LONGEST_EVIDENCE: Final = 32_768
_PATIENCE: Final = 120.0


async def publish_identity(config: Config, transport: httpx.AsyncBaseTransport | None = None) -> str:
    """What was published; Fatal when it was not."""
    box = config.box
    if box is None:
        raise Fatal("no box key is configured: name one under [keys], as box_file, box_env or box_credential")
    evidence = await trio.to_thread.run_sync(_evidence, config)
    async with httpx.AsyncClient(transport=transport, timeout=_PATIENCE, trust_env=False) as http:
        requests = Requests(http, config.coordinator_url)
        try:
            deployment = await read_chain(requests)
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None
        signer = Signer(config.wallet, deployment.domains)
        coordinator = Coordinator(requests, Sessions(requests, signer, Clock()))
        op = signer.set_identity(box.public.raw, evidence, int(time.time()))
        outcome = await coordinator.run(op, trio.current_time() + _PATIENCE)
    if isinstance(outcome, SignInRefused):
        raise Fatal(f"the coordinator does not sign {signer.address} in: {outcome.advice}")
    if not (isinstance(outcome, Mined) and outcome.succeeded):
        raise Fatal(f"the identity was not published: {describe(outcome)}")
    return f"{signer.address} published box key {hex_of(box.public.raw)} with {len(evidence)} bytes of evidence"


def _evidence(config: Config) -> bytes:
    if config.evidence_file is None:
        return b""
    try:
        evidence = config.evidence_file.read_bytes()
    except OSError as broken:
        raise Fatal(f"{config.evidence_file}: {broken.strerror}") from None
    if len(evidence) > LONGEST_EVIDENCE:
        raise Fatal(f"{config.evidence_file} has {len(evidence)} bytes; evidence has at most {LONGEST_EVIDENCE}")
    return evidence
