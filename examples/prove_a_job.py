"""Prove an order, its payment and its delivery to a third party, which needs no coordinator, only a node."""

import os

import anyio

from common.address_book import AddressBook
from common.receipt import verify_receipt
from svc import Client
from svc.chain.node import Chain
from svc.receipts import check_blocks
from svc.wire.connections import open_client
from svc.wire.json_rpc import Node

NODE = os.environ["SVC_RPC_URL"]


async def buy() -> bytes:
    async with Client(rpc_url=NODE) as client:
        question = {"input": "Say hello.", "max_output_tokens": 16}
        result = await client.run("demo/text-small", question, window="1h", final=True)
        return await client.receipt(result.job_id)


async def check(raw: bytes) -> None:
    receipt = verify_receipt(raw)  # signatures, and proofs of the chain's logs
    book = await anyio.Path(os.environ["SVC_ADDRESSES_FILE"]).read_bytes()
    receipt.require_market(AddressBook.parse(book))
    async with open_client() as http:
        await check_blocks(Chain([Node(NODE, http)]), receipt)
    for fact in receipt.facts:
        print(f"{fact.name}: {fact.value[:40]}  ({fact.rests_on})")


async def main() -> None:
    receipt = await buy()
    print(f"receipt of {len(receipt)} bytes")
    await check(receipt)


anyio.run(main)
