"""Fund an account of the running devnet with payment tokens and ether."""

from pathlib import Path
from typing import Final

import aiohttp
from eth_utils.address import to_checksum_address
from web3.types import RPCEndpoint

from devnet.client_environment import read_manifest
from devnet.contracts import connect_to_chain, contract_at
from devnet.errors import DevnetError

_WEI_PER_ETHER: Final = 10**18


async def fund_account(state_dir: Path, address: bytes, tokens: int, ether: int) -> str:
    """Add tokens and ether to an account. Return a sentence with the new balances. Raise DevnetError on failure."""
    manifest = read_manifest(state_dir)
    book, rpc_url = manifest["addresses"], manifest["rpc_url"]
    admin = next(account["address"] for account in manifest["accounts"] if account["role"] == "admin")
    account, unit = to_checksum_address(address), 10 ** book["paymentTokenDecimals"]
    try:
        async with connect_to_chain(rpc_url) as chain:
            token = contract_at(chain, "DevToken", book["paytoken"])
            if tokens:
                await chain.send(token, admin, "mint", account, tokens * unit)
            if ether:
                wei = await chain.web3.eth.get_balance(account) + ether * _WEI_PER_ETHER
                await chain.web3.provider.make_request(RPCEndpoint("anvil_setBalance"), [account, hex(wei)])
            held = await token.functions.balanceOf(account).call()
            gas = await chain.web3.eth.get_balance(account)
    except (OSError, aiohttp.ClientError) as error:
        raise DevnetError(
            f"the chain at {rpc_url} is unreachable ({error}): check that the devnet still runs"
        ) from None
    name = book["tokenDomain"]["name"]
    return f"{account} holds {held / unit:,.6f} {name} and {gas / _WEI_PER_ETHER:,.4f} ether"
