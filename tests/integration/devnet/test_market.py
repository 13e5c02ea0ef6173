"""The local market, read from the chain as any program would, with the limits of public chains."""

import asyncpg
import httpx
import pytest

from common.secp256k1 import Wallet
from common.transactions import Transaction
from devnet.accounts import DevWallets
from devnet.anvil import BLOCK_GAS_LIMIT, CHAIN_ID, TX_GAS_CAP, Anvil
from devnet.catalogue import FEE_BPS, GAS_FEE, MODELS, SLA_WINDOWS_S
from devnet.contracts import connect_to_chain, contract_at
from devnet.market import CLIENT_FUNDS
from devnet.world import World


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


@pytest.fixture(scope="module")
def blocks_seen() -> list[str]:
    return []


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_chain_is_set_back_after_a_test_mined(anvil: Anvil, blocks_seen: list[str], turn: str) -> None:
    blocks_seen.append(await anvil.call("eth_blockNumber"))
    await anvil.call("anvil_mine", "0x5")
    assert len(set(blocks_seen)) == 1


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_database_is_empty_after_a_test_made_tables(database_url: str, turn: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("create table left_over (id int)")
    finally:
        await connection.close()


async def test_catalogue_holds_models_windows_and_fees(world: World) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        jobs = contract_at(chain, "JobRegistry", world.market.jobs).functions
        assert await jobs.fees().call() == [FEE_BPS, GAS_FEE]
        assert [await jobs.slaAllowed(seconds).call() for seconds in (*SLA_WINDOWS_S, 61)] == [
            *(True for _ in SLA_WINDOWS_S),
            False,
        ]
        assert [await jobs.modelEnabled(model.model_id).call() for model in MODELS] == [True] * len(MODELS)
        assert await jobs.treasury().call() == world.wallets.treasury.address


async def test_relayers_may_relay_on_every_registry(world: World) -> None:
    market = world.market
    relayers = world.wallets.with_role("relayer")
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        for name, address in (
            ("JobRegistry", market.jobs),
            ("ProviderRegistry", market.providers),
            ("AskRegistry", market.asks),
        ):
            registry = contract_at(chain, name, address).functions
            assert [await registry.isRelayer(relayer.address).call() for relayer in relayers] == [True, True]


async def test_providers_are_listed_for_all_models_with_their_box_keys(world: World) -> None:
    wallets = world.wallets.with_role("provider")
    assert len(wallets) >= 2
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        providers = contract_at(chain, "ProviderRegistry", world.market.providers).functions
        for wallet in wallets:
            provider_id = await providers.providerIdOf(wallet.address).call()
            assert provider_id == world.market.provider_ids[wallet.address]
            operator, box_key, listed, all_models, *_ = await providers.provider(provider_id).call()
            assert (operator, box_key, listed, all_models) == (wallet.address, wallet.box_key, True, True)
            assert await providers.capacityOf(provider_id).call() > 1


async def test_clients_hold_the_payment_token(world: World) -> None:
    clients = world.wallets.with_role("client")
    assert len(clients) >= 3
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", world.market.token).functions
        for client in clients:
            assert await token.balanceOf(client.address).call() == CLIENT_FUNDS


async def test_address_book_names_the_tokens_domain(world: World) -> None:
    book = world.market.address_book
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        token = contract_at(chain, "DevToken", book["paytoken"]).functions
        _, name, version, chain_id, contract, *_ = await token.eip712Domain().call()
        assert book["tokenDomain"] == {"name": name, "version": version}
        assert (book["chainId"], book["paytoken"]) == (chain_id, contract)
        assert book["paymentTokenDecimals"] == await token.decimals().call()
        first = await chain.web3.eth.get_logs(
            {"address": [book[name] for name in ("providerRegistry", "jobRegistry", "askRegistry")], "fromBlock": 0}
        )
    assert book["deployBlock"] == min(log["blockNumber"] for log in first)
