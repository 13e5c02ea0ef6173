"""The test chain has the limits of public chains."""

import httpx

from common.secp256k1 import Wallet
from common.transactions import Transaction
from devnet.accounts import DevWallets
from devnet.anvil import BLOCK_GAS_LIMIT, CHAIN_ID, TX_GAS_CAP, Anvil


async def test_block_and_transaction_gas_match_public_chains(anvil: Anvil, wallets: DevWallets) -> None:
    admin = wallets.admin.address
    assert int((await anvil.call("eth_getBlockByNumber", "latest", False))["gasLimit"], 16) == BLOCK_GAS_LIMIT
    nonce = int(await anvil.call("eth_getTransactionCount", admin, "latest"), 16)
    fitting, above = (_raw(wallets, nonce, gas) for gas in (TX_GAS_CAP, TX_GAS_CAP + 1))
    body = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendRawTransaction", "params": [above]}
    async with httpx.AsyncClient(trust_env=False) as http:
        refusal = (await http.post(anvil.rpc_url, json=body)).json()["error"]["message"]
    assert "tx_gas_limit_cap" in refusal
    await anvil.call("eth_sendRawTransaction", fitting)
    assert int(await anvil.call("eth_getTransactionCount", admin, "latest"), 16) == nonce + 1


def _raw(wallets: DevWallets, nonce: int, gas: int) -> str:
    wallet = Wallet(bytes.fromhex(wallets.admin.private_key[2:]))
    transfer = Transaction(
        chain_id=CHAIN_ID,
        nonce=nonce,
        max_priority_fee_per_gas=10**9,
        max_fee_per_gas=10**12,
        gas=gas,
        to=wallet.address,
        value=0,
        data=b"",
    )
    return "0x" + transfer.sign(wallet).raw.hex()
