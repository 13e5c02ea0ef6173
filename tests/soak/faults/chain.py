"""Faults of a chain: reorgs, jumping fees, clock changes, foreign transactions, a token pause."""

import time
from random import Random
from typing import Any, Final

import anyio
from web3.exceptions import ContractLogicError, TimeExhausted, Web3RPCError

from devnet.contracts import SigningNode, connect_to_chain, contract_at
from devnet.errors import DevnetError
from tests.soak.ground import BLOCK_SECONDS, Ground
from tests.soak.programs import JOURNAL_BLOCKS

_DEEPEST: Final = 50
_USUAL_DEPTH: Final = 8
_SEND_ATTEMPTS: Final = 4  # of half a minute each
_GWEI: Final = 10**9
_MAX_AHEAD_S: Final = 240


async def reorganised(ground: Ground, random: Random, _seconds: float) -> None:
    """Replace the last blocks by empty ones. Each dropped transaction must be mined again or end."""
    await _reorganised(ground, min(_DEEPEST, 1 + int(random.expovariate(1 / _USUAL_DEPTH))))


async def reorganised_beyond_the_journal(ground: Ground, random: Random, _seconds: float) -> None:
    """Replace more blocks than the index can undo, but keep the market's deployment. The index is rebuilt. A young
    chain loses everything since the deployment."""
    head = int(await ground.anvil.call("eth_blockNumber"), 16)
    depth = JOURNAL_BLOCKS + random.randint(1, _DEEPEST)
    await _reorganised(ground, max(1, min(depth, head - ground.market_block)))


async def _reorganised(ground: Ground, depth: int) -> None:
    filled = {relayer: await _balance(ground, relayer) for relayer in _relayers(ground)}
    await ground.anvil.mine_every(0)  # anvil would lose blocks if it mined one meanwhile
    try:
        await ground.anvil.call("evm_mine")  # returns after a block that was being mined
        first = int(await ground.anvil.call("eth_blockNumber"), 16) - depth + 1
        await ground.anvil.call("anvil_reorg", depth, [])
        # anvil also sets back the chain's clock, by minutes for a deep reorg.
        newest = await ground.anvil.call("eth_getBlockByNumber", "latest", False)
        await ground.anvil.call("evm_setTime", max(int(time.time()), int(newest["timestamp"], 16) + 1))
    finally:
        await ground.anvil.mine_every(BLOCK_SECONDS)
    if await ground.anvil.call("eth_getBlockByNumber", hex(first), False) is None:
        raise DevnetError(f"anvil lost block {first} in a reorg of {depth} blocks: repeat the run")
    for relayer, balance in filled.items():  # refill accounts that the reorg emptied again
        if await _balance(ground, relayer) < balance:
            await ground.anvil.call("anvil_setBalance", relayer, hex(balance))
    await _let_all_pay(ground)


async def _let_all_pay(ground: Ground) -> None:
    """Repeat the issuer's unblocking, because a reorg may have removed it."""
    admin = ground.wallets.admin.address
    async with connect_to_chain(ground.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", ground.market.token)
        if await token.functions.paused().call():
            await _sent(chain, token, admin, "unpause")
        for client in ground.wallets.with_role("client"):
            if await token.functions.blacklisted(client.address).call():
                await _sent(chain, token, admin, "setBlacklisted", client.address, False)


async def _sent(chain: SigningNode, token: Any, issuer: str, method: str, *arguments: object) -> None:
    """Send until a block holds it. After a fee spike or a reorganisation, blocks may leave the issuer's transactions
    out for longer than one attempt waits."""
    for attempt in range(_SEND_ATTEMPTS):
        try:
            await chain.send(token, issuer, method, *arguments)
        except TimeExhausted:
            if attempt + 1 == _SEND_ATTEMPTS:
                raise
        except (Web3RPCError, ContractLogicError, RuntimeError):
            if not attempt:
                raise
            return  # an earlier attempt has taken effect
        else:
            return


async def fee_spike(ground: Ground, random: Random, seconds: float) -> None:
    """Raise fees above the current offers for a while."""
    base = (await ground.anvil.call("eth_getBlockByNumber", "latest", False))["baseFeePerGas"]
    until = anyio.current_time() + seconds
    while anyio.current_time() < until:
        await ground.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(random.randint(20, 200) * _GWEI))
        await anyio.sleep(0.9)
    await ground.anvil.call("anvil_setNextBlockBaseFeePerGas", base)


async def foreign_transaction(ground: Ground, random: Random, _seconds: float) -> None:
    """Send a foreign transaction from a relayer's account, so that the next nonce is unexpected."""
    relayer = random.choice(_relayers(ground))
    to = ground.wallets.admin.address
    await ground.anvil.call("eth_sendTransaction", {"from": relayer, "to": to, "value": "0x1", "gas": hex(21_000)})


async def relayer_empty(ground: Ground, random: Random, seconds: float) -> None:
    """Leave a relayer's account almost empty, and refill it later."""
    relayer = random.choice(_relayers(ground))
    before = await _balance(ground, relayer)
    await ground.anvil.call("anvil_setBalance", relayer, hex(random.randrange(10**15)))
    await anyio.sleep(seconds)
    await ground.anvil.call("anvil_setBalance", relayer, hex(before))


def _relayers(ground: Ground) -> list[str]:
    return [actor.address for actor in ground.wallets.with_role("relayer")[: len(ground.coordinators)]]


async def _balance(ground: Ground, address: str) -> int:
    return int(await ground.anvil.call("eth_getBalance", address, "latest"), 16)


async def clock_ahead(ground: Ground, random: Random, _seconds: float) -> None:
    """The chain's clock jumps ahead of every machine's. It never comes back, so all jumps together stay well inside the
    window of signed times."""
    block = await ground.anvil.call("eth_getBlockByNumber", "latest", False)
    room = _MAX_AHEAD_S - (int(block["timestamp"], 16) - time.time())
    await ground.anvil.call("evm_increaseTime", max(0, min(random.randint(1, 20), int(room))))


async def owner_blacklisted(ground: Ground, random: Random, seconds: float) -> None:
    """The issuer blacklists a buyer. Nothing can be collected from the buyer, and refunds become credit."""
    buyer = random.choice(ground.wallets.with_role("client")[1:]).address  # the first one funds strangers
    async with connect_to_chain(ground.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", ground.market.token)
        await _sent(chain, token, ground.wallets.admin.address, "setBlacklisted", buyer, True)
        try:
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await _sent(chain, token, ground.wallets.admin.address, "setBlacklisted", buyer, False)


async def token_paused(ground: Ground, _random: Random, seconds: float) -> None:
    """Pause the token. No claim can collect, but all exits must still work."""
    async with connect_to_chain(ground.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", ground.market.token)
        await _sent(chain, token, ground.wallets.admin.address, "pause")
        try:
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await _sent(chain, token, ground.wallets.admin.address, "unpause")
