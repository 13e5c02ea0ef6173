"""Money for an account of the market that is up: the payment token, minted by its admin, and ether from nowhere."""

from pathlib import Path
from typing import Final

import aiohttp
from eth_utils.address import to_checksum_address
from web3.types import RPCEndpoint

from devnet.client_environment import described_in
from devnet.contracts import at, connected
from devnet.errors import DevnetError

_WEI: Final = 10**18


async def fund(state_dir: Path, address: bytes, tokens: int, ether: int) -> str:
    """Adds to what the account holds; what it holds then, in words. Raises DevnetError."""
    described = described_in(state_dir)
    book, rpc_url = described["addresses"], described["rpc_url"]
    admin = next(account["address"] for account in described["accounts"] if account["role"] == "admin")
    account, unit = to_checksum_address(address), 10 ** book["paymentTokenDecimals"]
    try:
        async with connected(rpc_url) as chain:
            token = at(chain, "DevToken", book["paytoken"])
            if tokens:
                await chain.send(token, admin, "mint", account, tokens * unit)
            if ether:
                wei = await chain.web3.eth.get_balance(account) + ether * _WEI
                await chain.web3.provider.make_request(RPCEndpoint("anvil_setBalance"), [account, hex(wei)])
            held = await token.functions.balanceOf(account).call()
            gas = await chain.web3.eth.get_balance(account)
    except (OSError, aiohttp.ClientError) as away:
        raise DevnetError(f"the chain at {rpc_url} does not answer ({away}): is the devnet still up?") from None
    name = book["tokenDomain"]["name"]
    return f"{account} holds {held / unit:,.6f} {name} and {gas / _WEI:,.4f} ether"
