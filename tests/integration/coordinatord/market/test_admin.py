"""Administer a market with a key and as calldata for a multisig. Both make the same calls or give the same reason for
none."""

import json
from collections.abc import Callable

import attrs
import pytest

from common.address_book import AddressBook
from coordinatord.market.commands import CommandFailed, market
from coordinatord.market.contracts import Contract
from coordinatord.market.reading import MarketState, read_market
from devnet.anvil import Anvil
from tests.integration.coordinatord.market.ground import SPAN, Ground, key_of

KEY = "0x" + "ab" * 32
SOMEBODY = "0x" + "5e" * 20


@attrs.frozen
class Office:
    """A market owned by its deployer, with one provider, and the command line."""

    ground: Ground
    book: AddressBook
    rpc_url: str
    read: Callable[[], str]  # reads the printed output

    def run(self, *words: str) -> str:
        """Return the command's output."""
        self.read()
        where = ("--rpc-url", self.rpc_url, "--addresses", str(self.ground.out))
        market.main(["admin", *words, *where], standalone_mode=False)
        return self.read()

    def send(self, *words: str) -> list[tuple[str, str]]:
        """Send with the key. Return the transactions as (to, data)."""
        before = self.ground.rpc("eth_blockNumber")
        self.run(*words, "--key-file", str(self.key_file()), "--confirmations", "1", "--poll", "0.01")
        blocks = range(int(before, 16) + 1, int(self.ground.rpc("eth_blockNumber"), 16) + 1)
        sent = [t for n in blocks for t in self.ground.rpc("eth_getBlockByNumber", hex(n), True)["transactions"]]
        assert {transaction["value"] for transaction in sent} <= {"0x0"}
        return [(transaction["to"], transaction["input"]) for transaction in sent]

    def calldata(self, *words: str) -> list[tuple[str, str]]:
        document = json.loads(self.run(*words, "--calldata", "--json"))
        assert document["chainId"] == "31337"
        assert all(call["value"] == "0" and call["description"] for call in document["transactions"])
        return [(call["to"].lower(), call["data"]) for call in document["transactions"]]

    def key_file(self, wallet: int = 3) -> str:
        path = self.ground.folder / f"key{wallet}"
        path.touch(mode=0o600)
        path.write_text(self.ground.wallets.with_role("client")[wallet].private_key)
        return str(path)

    def market(self) -> MarketState:
        return read_market(self.ground.node, self.book, SPAN, lambda _: None)


@pytest.fixture
def office(ground: Ground, anvil: Anvil, capsys: pytest.CaptureFixture[str]) -> Office:
    book = ground.deployed(attrs.evolve(ground.terms, owner=ground.deployer.address))
    providers = Contract("ProviderRegistry", "0x" + book.provider_registry.hex())
    ground.send(key_of(ground.wallets.with_role("provider")[0]), providers.build_call("register", "register"))
    return Office(ground, book, anvil.rpc_url, lambda: capsys.readouterr().out)


# Each deed starts in the state after the previous ones. The last member is the state expected on the chain.
DEEDS: list[tuple[list[str], int, Callable[[MarketState], object], object]] = [
    (["list-provider", "1"], 1, lambda m: m.listings[0].listed, True),
    (["delist-provider", "1"], 1, lambda m: m.listings[0].listed, False),
    (["ceiling", "1", "40"], 1, lambda m: m.listings[0].ceiling, 40),
    (["allow-model", "1", "7", "yes"], 1, lambda m: m.listings[0].models, {7}),
    (["allow-model", "1", "7", "no"], 1, lambda m: m.listings[0].models, frozenset()),
    (["allow-all-models", "1", "yes"], 1, lambda m: m.listings[0].all_models, True),
    (["set-model", "12", "--name", "lab/new", "--owned-by", "lab"], 1, lambda m: m.models[12][0].name, "lab/new"),
    (
        ["enable-model", "7", "no"],
        1,
        lambda m: (m.models[7][0].params_schema, m.models[7][1]),
        ('{"type":"object"}', False),
    ),
    (["sla", "86400", "yes"], 1, lambda m: m.slas, {60, 3600, 86400}),
    (["sla", "60", "no"], 1, lambda m: m.slas, {3600, 86400}),
    (["fees", "10", "20"], 1, lambda m: (m.fee_bps, m.gas_fee), (10, 20)),
    (["token-gas", "300000"], 1, lambda m: m.token_gas, 300_000),
    (["point-price", "17"], 1, lambda m: m.point_price, 17),
    (["treasury", SOMEBODY], 1, lambda m: m.treasury.lower(), SOMEBODY),
    (["grant-relayer", SOMEBODY], 3, lambda m: {len(r.relayers) for r in m.registries.values()}, {3}),
    (["revoke-relayer", SOMEBODY], 3, lambda m: {len(r.relayers) for r in m.registries.values()}, {2}),
    (["pause"], 1, lambda m: m.paused, True),
    (["unpause"], 1, lambda m: m.paused, False),
    (["allowlist", KEY, "tombstoned", ""], 1, lambda m: m.allowlist[KEY][0], "tombstoned"),
    (
        ["transfer-ownership", SOMEBODY],
        3,
        lambda m: {str(r.pending_owner).lower() for r in m.registries.values()},
        {SOMEBODY},
    ),
    (["take-back-ownership"], 3, lambda m: {r.pending_owner for r in m.registries.values()}, {None}),
]


@pytest.mark.long
def test_every_action_matches_its_calldata(office: Office) -> None:
    for words, calls, read, expected in DEEDS:
        calldata = office.calldata(*words)
        assert len(calldata) == calls, words
        assert office.send(*words) == calldata, words
        assert read(office.market()) == expected, words
        with pytest.raises(CommandFailed, match="nothing to do: already done"):
            office.run(*words, "--calldata")


def test_new_owner_accepts_by_its_key_and_nobody_else_can(office: Office) -> None:
    heir = office.ground.heir.address
    with pytest.raises(CommandFailed, match="no registry's ownership is offered"):
        office.run("accept-ownership", "--calldata")
    office.send("transfer-ownership", heir)
    with pytest.raises(CommandFailed, match=f"{office.ground.deployer.address} may not do this, only {heir}: "):
        office.send("accept-ownership")
    office.run("accept-ownership", "--key-file", office.key_file(0), "--confirmations", "1", "--poll", "0.01")
    assert {registry.owner for registry in office.market().registries.values()} == {heir}
    with pytest.raises(CommandFailed, match="may not do this"):
        office.send("pause")


NONSENSE = [
    (["list-provider", "2"], "there is no provider 2: ids go from 1 to 1"),
    (["enable-model", "99", "yes"], "model 99 was never set"),
    (["fees", "2001", "0"], "the fee in bps must be in 0..2000"),
    (["fees", "1", "5001"], "the gas fee must be at most 5000"),
    (["token-gas", "199999"], "the gas must be in 200000..2000000"),
    (["sla", "86401", "yes"], "the window must be in 1..86400"),
    (["sla", "60", "maybe"], "must be yes or no, not maybe"),
    (["allowlist", "0xab", "allowed", ""], "the key must be 0x-prefixed hex of 32 bytes"),
    (["allowlist", KEY, "wrong", ""], "must be one of none, allowed, tombstoned"),
    (["treasury", "0x5Fbdb2315678afecb367f032d93F642f64180aa3"], "checksum"),
    (["grant-relayer", "0x" + "00" * 20], "must not be the zero address"),
]


def test_invalid_action_is_refused_by_its_value(office: Office) -> None:
    for words, said in NONSENSE:
        with pytest.raises(CommandFailed, match=said):
            office.run(*words, "--calldata")


def test_treasury_that_would_swallow_fees_is_refused(office: Office) -> None:
    for contract in (office.book.job_registry, office.book.ask_registry, office.book.paytoken):
        with pytest.raises(CommandFailed, match="would be lost"):
            office.run("treasury", "0x" + contract.hex(), "--calldata")


def test_provider_allowed_all_models_cannot_lose_one(office: Office) -> None:
    office.send("allow-all-models", "1", "yes")
    with pytest.raises(CommandFailed, match="run `allow-all-models 1 no` first"):
        office.run("allow-model", "1", "7", "no", "--calldata")


def test_calldata_for_people_names_what_it_does(office: Office) -> None:
    text = office.run("fees", "10", "20", "--calldata")
    jobs = Contract("JobRegistry", "0x" + office.book.job_registry.hex())
    assert "JobRegistry: fees of 10 bps and 20 for jobs posted from now on" in text
    assert "value  0" in text
    assert "0x" + jobs.calldata("setFees", 10, 20).hex() in text
