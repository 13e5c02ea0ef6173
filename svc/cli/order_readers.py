"""Describe who can read an order."""

from common import escrow_evidence
from svc.client import Client

_OPEN_ORDER_READERS = {
    escrow_evidence.STATIC_EVIDENCE_TYPE: "the claiming provider and this market's operator",
    escrow_evidence.MOCK_EVIDENCE_TYPE: "the claiming provider and the operator of this development escrow",
}


def open_order_readers(evidence_type: str) -> str:
    """Return who can read an open order sealed to an escrow with this type of evidence."""
    return _OPEN_ORDER_READERS[evidence_type]


async def describe_readers(client: Client, designated: int) -> str:
    """Return who can read an order for this provider, or an open order if `designated` is 0."""
    if designated:
        return f"provider {designated} only"
    return open_order_readers((await client.escrow()).evidence.type)
