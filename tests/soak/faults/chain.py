"""What a chain does by itself: blocks that are taken back, fees that jump, time, strangers, an issuer's pause."""

import time
from random import Random
from typing import Final

import anyio

from devnet.market import at, connected
from tests.soak.ground import Ground

_DEEPEST: Final = 50
_USUAL_DEPTH: Final = 8
_GWEI: Final = 10**9
_MOST_AHEAD: Final = 240  # seconds


async def reorganised(ground: Ground, random: Random, _seconds: float) -> None:
    """The last blocks are replaced by empty ones: what they held must find its way back, or its end."""
    depth = min(_DEEPEST, 1 + int(random.expovariate(1 / _USUAL_DEPTH)))
    filled = {relayer: await _balance(ground, relayer) for relayer in _relayers(ground)}
    await ground.anvil.call("anvil_reorg", depth, [])
    for relayer, balance in filled.items():  # whoever had filled an empty account up does so again
        if await _balance(ground, relayer) < balance:
            await ground.anvil.call("anvil_setBalance", relayer, hex(balance))


async def fee_spike(ground: Ground, random: Random, seconds: float) -> None:
    """What was offered is too little for a while."""
    base = (await ground.anvil.call("eth_getBlockByNumber", "latest", False))["baseFeePerGas"]
    until = anyio.current_time() + seconds
    while anyio.current_time() < until:
        await ground.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(random.randint(20, 200) * _GWEI))
        await anyio.sleep(0.9)
    await ground.anvil.call("anvil_setNextBlockBaseFeePerGas", base)


async def foreign_transaction(ground: Ground, random: Random, _seconds: float) -> None:
    """Somebody uses a relayer's account from elsewhere: the next nonce is not the one that was expected."""
    relayer = random.choice(_relayers(ground))
    to = ground.cast.admin.address
    await ground.anvil.call("eth_sendTransaction", {"from": relayer, "to": to, "value": "0x1", "gas": hex(21_000)})


async def relayer_empty(ground: Ground, random: Random, seconds: float) -> None:
    """A relayer's account has next to nothing left, until somebody fills it up."""
    relayer = random.choice(_relayers(ground))
    before = await _balance(ground, relayer)
    await ground.anvil.call("anvil_setBalance", relayer, hex(random.randrange(10**15)))
    await anyio.sleep(seconds)
    await ground.anvil.call("anvil_setBalance", relayer, hex(before))


def _relayers(ground: Ground) -> list[str]:
    return [actor.address for actor in ground.cast.with_role("relayer")[: len(ground.coordinators)]]


async def _balance(ground: Ground, address: str) -> int:
    return int(await ground.anvil.call("eth_getBalance", address, "latest"), 16)


async def clock_ahead(ground: Ground, random: Random, _seconds: float) -> None:
    """The chain's clock jumps ahead of every machine's. It never comes back, so all jumps together stay well inside the
    window of signed times."""
    block = await ground.anvil.call("eth_getBlockByNumber", "latest", False)
    room = _MOST_AHEAD - (int(block["timestamp"], 16) - time.time())
    await ground.anvil.call("evm_increaseTime", max(0, min(random.randint(1, 20), int(room))))


async def token_paused(ground: Ground, _random: Random, seconds: float) -> None:
    """No claim can collect; everything that ends a job still must."""
    async with connected(ground.anvil.rpc_url) as chain:
        token = at(chain, "DevToken", ground.market.token)
        await chain.send(token, ground.cast.admin.address, "pause")
        try:
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await chain.send(token, ground.cast.admin.address, "unpause")
