"""Facts of a deployed market: all right as deployed, and each planted wrong one found."""

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from common import artifacts
from common.address_book import AddressBook
from common.checks import wrong_names
from common.daemon.process import Fatal
from coordinatord.market import explorer, status
from coordinatord.market.contracts import Contract
from coordinatord.market.deployment import encode_constructor_arguments_of
from coordinatord.market.node import read_code
from coordinatord.market.reading import contracts_of, read_market
from coordinatord.market.status import check_integrity, check_terms
from tests.integration.coordinatord.market.ground import SPAN, Ground

STRANGER = "0x" + "77" * 20


def wrong_facts(ground: Ground, book: AddressBook) -> list[str]:
    market = read_market(ground.node, book, SPAN, lambda _: None)
    return wrong_names(check_integrity(market, book) + check_terms(market, ground.terms))


def by_admin(registry: str, function: str, *arguments: object) -> Callable[[Ground, dict[str, Contract]], None]:
    def plant(ground: Ground, contracts: dict[str, Contract]) -> None:
        ground.send(ground.deployer, contracts[registry].build_call("plant", function, *arguments))

    return plant


def other_code(ground: Ground, contracts: dict[str, Contract]) -> None:
    """One byte of it, which no view runs through."""
    address = contracts["AskRegistry"].address
    code = bytearray(read_code(ground.node, address))
    at = code.index(artifacts.selector(artifacts.load_artifact("AskRegistry"), "relay"))
    code[at] ^= 1
    ground.rpc("anvil_setCode", address, "0x" + code.hex())


def other_job_registry(ground: Ground, contracts: dict[str, Contract]) -> None:
    """A second registry with the code of the first, so that it names the same provider registry."""
    ground.rpc("anvil_setCode", STRANGER, "0x" + read_code(ground.node, contracts["JobRegistry"].address).hex())
    by_admin("ProviderRegistry", "setJobRegistry", STRANGER)(ground, contracts)


PLANTED: list[tuple[Callable[[Ground, dict[str, Contract]], None], list[str]]] = [
    (by_admin("JobRegistry", "setFees", 300, 1235), ["JobRegistry: gas fee"]),
    (by_admin("JobRegistry", "setFees", 299, 1234), ["JobRegistry: fee in bps"]),
    (by_admin("JobRegistry", "setTokenGas", 200_001), ["JobRegistry: gas limit of a token call"]),
    (by_admin("ProviderRegistry", "setPointPrice", 251), ["ProviderRegistry: price of a point"]),
    (by_admin("JobRegistry", "setSla", 60, False), ["JobRegistry: windows in seconds"]),
    (by_admin("JobRegistry", "setSla", 61, True), ["JobRegistry: windows in seconds"]),
    (by_admin("JobRegistry", "setModel", 8, "x", True, "", ""), ["JobRegistry: other models enabled"]),
    (by_admin("JobRegistry", "setModel", 9, "lab/pictures", False, "", ""), ["JobRegistry: model 9 enabled"]),
    (by_admin("JobRegistry", "setModel", 9, "lab/picture", True, "", ""), ["JobRegistry: model 9"]),
    (by_admin("JobRegistry", "setTreasury", STRANGER), ["JobRegistry: treasury"]),
    (by_admin("JobRegistry", "pause"), ["JobRegistry: paused"]),
    (by_admin("AskRegistry", "setRelayer", STRANGER, True), ["AskRegistry: relayers"]),
    (by_admin("AskRegistry", "transferOwnership", STRANGER), ["AskRegistry: owner, or pending owner"]),
    (other_job_registry, ["ProviderRegistry: job registry"]),
    (other_code, ["AskRegistry: code at {AskRegistry} is this release's"]),
]


@pytest.mark.long
def test_every_planted_wrong_fact_is_found_and_no_other(ground: Ground) -> None:
    book = ground.deployed()
    contracts = contracts_of(book)
    assert wrong_facts(ground, book) == []
    addresses = {name: contract.address for name, contract in contracts.items()}
    for plant, found in PLANTED:
        snapshot = ground.rpc("evm_snapshot")
        plant(ground, contracts)
        assert wrong_facts(ground, book) == [fact.format_map(addresses) for fact in found]
        ground.rpc("evm_revert", snapshot)


@pytest.mark.long
def test_address_book_that_differs_from_the_chain_is_found(ground: Ground) -> None:
    book = ground.deployed()
    late = attrs.evolve(book, deploy_block=book.deploy_block + 1)
    assert wrong_facts(ground, late) == ["ProviderRegistry: deployed in the address book's deployBlock or later"]
    assert wrong_facts(ground, attrs.evolve(book, payment_token_decimals=5)) == ["token: decimals"]


def test_registries_that_are_swapped_in_the_book_are_refused(ground: Ground) -> None:
    book = ground.deployed()
    swapped = attrs.evolve(book, ask_registry=book.job_registry, job_registry=book.ask_registry)
    with pytest.raises(Fatal, match=r"is not a JobRegistry: its function \w+ reverts"):
        read_market(ground.node, swapped, SPAN, lambda _: None)
    with pytest.raises(Fatal, match="the address book is for chain 2"):
        read_market(ground.node, attrs.evolve(book, chain_id=2), SPAN, lambda _: None)


def test_status_tells_every_fact_to_people_and_to_programs(ground: Ground) -> None:
    book = ground.deployed()
    market = read_market(ground.node, book, SPAN, lambda _: None)
    rows = status.fact_rows(market, book)
    text, document = status.as_text(market, rows), json.loads(status.as_json(market, rows))
    for said in ("lab/words", ground.heir.address, "1234 (0.001234)", "60, 3600", ground.wallets.treasury.address):
        assert said in text
    assert [model["model_id"] for model in document["models"]] == [7, 9]
    facts = {fact["what"]: fact for fact in document["facts"]}
    assert facts["JobRegistry: pending owner"]["detail"] == ground.heir.address
    assert facts["ProviderRegistry: job registry"]["result"] == "right"
    assert facts["JobRegistry: fee"]["result"] is None


@pytest.mark.long
def test_explorer_folder_has_sources_and_arguments(ground: Ground) -> None:
    book = ground.deployed()
    market = read_market(ground.node, book, SPAN, lambda _: None)
    folder = ground.folder / "explorer"
    explorer.write_verification_files(folder, ground.node, market)
    addresses = {name: contract.address for name, contract in contracts_of(book).items()}
    for name in addresses:
        written = bytes.fromhex((folder / f"{name}.constructor-arguments.txt").read_text())
        assert written == encode_constructor_arguments_of(name, ground.terms, ground.deployer.address, addresses)
        document = json.loads((folder / f"{name}.standard-input.json").read_text())
        assert document["sources"][f"src/{name}.sol"]["content"] == _source(name)
        assert (document["settings"]["viaIR"], document["settings"]["evmVersion"]) == (True, "cancun")
    forms = json.loads((folder / "contracts.json").read_text())
    assert [form["address"] for form in forms["contracts"]] == list(addresses.values())


def _source(name: str) -> str:
    return (Path(artifacts.__file__).parent / "contracts" / "src" / f"{name}.sol").read_text()
