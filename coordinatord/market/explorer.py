"""Write the files with which block explorers verify contracts: the compiler's input and the constructor's arguments."""

import json
from pathlib import Path
from typing import Any

from eth_typing import HexStr
from hexbytes import HexBytes
from web3 import Web3
from web3.exceptions import TransactionNotFound

from common import artifacts
from common.daemon.process import Fatal
from coordinatord.market.deployment import REGISTRIES
from coordinatord.market.journal import replace_file
from coordinatord.market.reading import MarketState


def standard_input(name: str) -> dict[str, Any]:
    """Return the input that `solc --standard-json` compiles to exactly the bytecode that this release deploys."""
    written = artifacts.compiler_sources()
    paths = written["contracts"][name]
    return {
        "language": "Solidity",
        "sources": {path: {"content": written["sources"][path]} for path in paths},
        "settings": written["settings"],
    }


def write_verification_files(folder: Path, node: Web3, market: MarketState) -> list[Path]:
    """Write two files per registry, and one file with the values for an explorer's form. Return the paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Fatal(f"the folder {folder} cannot be created: {error.strerror}") from None
    compiler = artifacts.compiler_sources()["compiler"]
    written, forms = [], []
    for name in REGISTRIES:
        arguments = read_creation_arguments(node, market, name)
        texts = {
            f"{name}.standard-input.json": json.dumps(standard_input(name), indent=2) + "\n",
            f"{name}.constructor-arguments.txt": arguments.hex() + "\n",
        }
        for file, text in texts.items():
            replace_file(folder / file, text)
            written.append(folder / file)
        forms.append(
            {
                "address": market.registries[name].contract.address,
                "contract": f"src/{name}.sol:{name}",
                "compiler": compiler,
                "standardInput": f"{name}.standard-input.json",
                "constructorArguments": arguments.hex(),
            }
        )
    document = {"chainId": market.chain_id, "license": "Apache-2.0", "contracts": forms}
    replace_file(folder / "contracts.json", json.dumps(document, indent=2) + "\n")
    return [*written, folder / "contracts.json"]


def read_creation_arguments(node: Web3, market: MarketState, name: str) -> bytes:
    """Return the encoded arguments that a registry was deployed with, which follow the bytecode in the transaction."""
    created = market.registries[name].created
    if created is None:
        raise Fatal(f"{name} was deployed before the address book's deployBlock: correct deployBlock first")
    try:
        data = node.eth.get_transaction(HexStr(created[1]))["input"]
    except TransactionNotFound:
        data = HexBytes("0x")
    bytecode = artifacts.load_artifact(name).bytecode
    if not data.startswith(bytecode):
        raise Fatal(f"{name}: transaction {created[1]} did not deploy the bytecode of this release")
    return bytes(data[len(bytecode) :])
