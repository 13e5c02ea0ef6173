"""Who can open what an order seals, in words."""

from common import escrow_evidence
from svc.client import Client

_BY_KIND = {
    escrow_evidence.STATIC: "the provider that claims it, and whoever runs the coordinator: its operator holds the key",
    escrow_evidence.MOCK: "the provider that claims it, and whoever runs this development escrow",
}


def readers_of_open_orders(kind: str) -> str:
    return _BY_KIND[kind]


async def who_can_open(client: Client, designated: int) -> str:
    if designated:
        return f"provider {designated} alone"
    return readers_of_open_orders((await client.escrow()).evidence.type)
