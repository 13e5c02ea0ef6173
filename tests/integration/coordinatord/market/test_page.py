"""The shell blocks of docs/operators/market.md work in order on a fresh chain."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from web3 import Web3

from common.address_book import AddressBook
from coordinatord.market.actions import ADMIN_COMMANDS
from coordinatord.market.contracts import Contract
from coordinatord.market.node import connect
from devnet.accounts import DevWallets
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from tests.integration.coordinatord.market.ground import PUBLIC_CHAIN, issued_token, key_of, public_chain, rpc, send

PAGE = Path(__file__).parents[4] / "docs" / "operators" / "market.md"
MARKET_FILE_PAGE = PAGE.with_name("first-market.md")
ETHER = 10**18


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Shell:
    """Runs blocks one after another in the same folder, and keeps exports and variables between blocks."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.state = folder, folder.parent / "state.sh"
        self.state.write_text("")
        self.environment = environment

    def run(self, block: str) -> str:
        script = f'set -eu\n. "{self.state}"\nset -a\n{block}\nset +a\ndeclare -px > "{self.state}"\n'
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.long
@pytest.mark.timeout(400)  # starts a program about twenty times
def test_page_leads_an_operator_to_an_accepted_market(
    tmp_path: Path, wallets: DevWallets, database_url: str, pin_store: PinStoreService
) -> None:
    folder = tmp_path / "operator"
    folder.mkdir()
    owner, relayer = wallets.with_role("client")[1], wallets.with_role("relayer")[0]
    with public_chain(tmp_path) as url, connect(url) as node:
        token = issued_token(node, wallets)
        shell = Shell(
            folder,
            {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **{"RPC_URL": url, "SIGNER_URL": url, "CHAIN_ID": str(PUBLIC_CHAIN), "TOKEN": token},
                **{"OWNER": owner.address, "TREASURY": wallets.treasury.address, "RELAYER": relayer.address},
                **{"DATABASE_URL": database_url, "RELAYER_KEY": relayer.private_key, "PGSSLMODE": "disable"},
                **{"PORT": str(pick_free()), "METRICS_PORT": "0"},  # other coordinators use the default ports
                **{"PIN_STORE_ENDPOINT": pin_store.endpoint, "PIN_STORE_BUCKET": pin_store.bucket},
                **{"PIN_STORE_KEY": pin_store.key, "PIN_STORE_SECRET": pin_store.secret},
            },
        )
        printed = follow(shell, node, wallets)
        book = AddressBook.parse((folder / "addresses.json").read_bytes())
    assert printed["coordinatord check"].splitlines()[-1].startswith("nothing is wrong")
    assert "WRONG" not in "".join(printed.values())
    assert "Market Dollar', version '2'" in printed["market deploy"]
    assert re.search(r"^1 .* listed +2 +0/1 ", printed["market status"], re.MULTILINE)
    assert (book.chain_id, book.paytoken.hex()) == (PUBLIC_CHAIN, token[2:].lower())
    assert len(json.loads((folder / "accept.json").read_text())["transactions"]) == 3
    assert len(list((folder / "explorer").glob("*.standard-input.json"))) == 3
    assert (folder / "deployer.json").stat().st_mode & 0o077 == 0


def follow(shell: Shell, node: Web3, wallets: DevWallets) -> dict[str, str]:
    """Follow the page from its first block to its last. Return the output of each command of interest. Between blocks,
    do what the page expects of other people: send funds, register a provider."""
    variables, deployer, *rest = blocks_of(PAGE)
    blocks = [variables, deployer, *blocks_of(MARKET_FILE_PAGE), *rest]
    assert len(blocks) >= 10
    printed = {}
    for block in blocks:
        if "list-provider" in block:
            registry = AddressBook.parse((shell.folder / "addresses.json").read_bytes()).provider_registry
            register = Contract("ProviderRegistry", "0x" + registry.hex()).build_call("register", "register")
            send(node, key_of(wallets.with_role("provider")[0]), register, chain_id=PUBLIC_CHAIN)
        output = shell.run(block)
        for command in ("coordinatord check", "market status", "market verify", "market deploy", "market new-key"):
            if command in block:
                printed[command] = output
        if "new-key" in block:
            [deployer] = re.findall(r"0x[0-9a-fA-F]{40}", output)
            rpc(node, "anvil_setBalance", deployer, hex(ETHER))
    return printed


def test_table_of_actions_names_every_action_of_the_command() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| action | changes |")[2]
    named = set(re.findall(r"`([a-z-]+)(?= |`)", table.partition("\n\n")[0]))
    assert named == set(ADMIN_COMMANDS) | {"set-model"}
