"""Mine blocks only on demand, and inspect the pool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from common.abi import address, bytes32, encode, selector, uint
from common.domains import Domains
from common.eip712 import digest
from common.keccak import keccak256
from common.secp256k1 import Wallet
from devnet.anvil import Anvil
from devnet.world import World
from tests.integration.coordinatord.relayer.ops import hexed

_CANCEL_TYPE = keccak256(b"CancelAuthorization(address authorizer,bytes32 nonce)")


@asynccontextmanager
async def mining_by_hand(anvil: Anvil) -> AsyncIterator[None]:
    """Mine only with `evm_mine` inside the block. Afterwards the shared chain mines each transaction again."""
    base_fee = (await anvil.call("eth_feeHistory", "0x1", "latest", []))["baseFeePerGas"][-1]
    await anvil.call("evm_setAutomine", False)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):  # other tests share the chain, so restore it after any error
            await anvil.call("evm_setAutomine", True)
            await anvil.call("anvil_dropAllTransactions")
            await anvil.call("anvil_setNextBlockBaseFeePerGas", base_fee)  # a snapshot does not restore it


async def pooled(anvil: Anvil) -> int:
    """Return the number of transactions that the next block would hold."""
    return int((await anvil.call("txpool_status"))["pending"], 16)


async def until_pooled(anvil: Anvil) -> None:
    while await pooled(anvil) == 0:  # noqa: ASYNC110 - the event is in the node
        await anyio.sleep(0.02)


async def ahead_of_the_relayer(anvil: Anvil, sender: str, to: str, call: bytes) -> None:
    """Put a transaction into the pool that the next block includes first."""
    dear = {"maxFeePerGas": hex(10**12), "maxPriorityFeePerGas": hex(10**11)}
    await anvil.call(
        "eth_sendTransaction", {"from": sender, "to": to, "data": hexed(call), "gas": hex(300_000), **dear}
    )


async def money_moves(world: World, owner: Wallet) -> None:
    token, balance = world.market.token, selector("balanceOf(address)") + encode(address(owner.address))
    amount = int(await world.anvil.call("eth_call", {"to": token, "data": hexed(balance)}, "latest"), 16)
    call = selector("transfer(address,uint256)") + encode(address(b"\x77" * 20), uint(amount))
    await ahead_of_the_relayer(world.anvil, hexed(owner.address), token, call)


async def authorization_cancelled(world: World, domains: Domains, owner: Wallet, job: str) -> None:
    """The owner cancels a job's payment before the relayer's pending transactions are mined."""
    nonce = bytes.fromhex(job[2:])
    message = keccak256(_CANCEL_TYPE + bytes(12) + owner.address + nonce)
    signature = owner.sign(digest(domains.token.separator, message))
    arguments = (address(owner.address), bytes32(nonce), uint(signature[64]), bytes32(signature[:32]))
    call = selector("cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)")
    call += encode(*arguments, bytes32(signature[32:64]))
    await ahead_of_the_relayer(world.anvil, hexed(owner.address), world.market.token, call)
