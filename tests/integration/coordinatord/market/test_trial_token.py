"""`coordinatord market deploy-test-token` works on test chains, and is refused on real ones."""

from pathlib import Path

import attrs
import pytest

from common.daemon.process import Fatal
from coordinatord.market.commands import market
from coordinatord.market.deploy import deploy
from coordinatord.market.trial_token import MAIN_NETWORKS, reject_main_network
from devnet.anvil import Anvil
from tests.integration.coordinatord.market.ground import SPAN, Ground


def command(ground: Ground, url: str, *more: str) -> list[str]:
    key = ground.folder / "deployer.key"
    key.write_text(ground.wallets.with_role("client")[3].private_key + "\n")
    key.chmod(0o600)
    line = ["deploy-test-token", "--rpc-url", url, "--key-file", str(key)]
    return [*line, "--confirmations", "1", "--poll", "0.02", *more]


def test_test_token_is_deployed_minted_and_good_for_a_market(
    ground: Ground, anvil: Anvil, capsys: pytest.CaptureFixture[str]
) -> None:
    buyer = ground.heir.address
    market.main(command(ground, anvil.rpc_url, "--mint", f"{buyer}=250"), standalone_mode=False)
    address = capsys.readouterr().out.strip()
    token = attrs.evolve(ground.token, address=address)
    assert token.read(ground.node, "balanceOf", buyer) == 250 * 10**6
    assert token.read(ground.node, "owner").lower() == ground.deployer.address.lower()
    terms = attrs.evolve(ground.terms, token=address)
    book = deploy(ground.deployment(terms), ground.out, SPAN)
    assert "0x" + book.paytoken.hex() == address.lower()


@pytest.mark.parametrize("chain_id", [1, 137, 8453, 42161])
def test_test_token_is_refused_on_main_networks(chain_id: int) -> None:
    with pytest.raises(Fatal, match=f"chain {chain_id} is {MAIN_NETWORKS[chain_id]}, a main network"):
        reject_main_network(chain_id)


@pytest.mark.parametrize("chain_id", [11155111, 84532, 421614, 31337])
def test_test_networks_take_a_test_token(chain_id: int) -> None:
    reject_main_network(chain_id)


def test_command_sends_nothing_to_a_main_network(
    ground: Ground, anvil: Anvil, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ground.rpc("anvil_setChainId", 8453)
    try:
        with pytest.raises(SystemExit):
            market(command(ground, anvil.rpc_url))
    finally:
        ground.rpc("anvil_setChainId", 31337)
    assert "a main network" in capsys.readouterr().err
    assert ground.sent() == 0


@pytest.mark.parametrize("mint", ["0x12=5", "5", f"0x{'11' * 20}=1.5", f"0x{'11' * 20}=0"])
def test_malformed_mint_is_refused(mint: str) -> None:
    with pytest.raises(SystemExit) as ended:
        market(["deploy-test-token", "--rpc-url", "http://127.0.0.1:1", "--mint", mint])
    assert ended.value.code == 2
