"""Deployments on a real chain: complete, killed, and refused before the start. Test tokens for test chains alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from web3 import Web3
from web3.types import RPCEndpoint, RPCResponse

from common.address_book import AddressBook
from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.market.commands import market
from coordinatord.market.contracts import Contract, ContractCall
from coordinatord.market.deploy import acceptance_calls, deploy, dry_run, journal_path
from coordinatord.market.deployment import deployment_steps
from coordinatord.market.fees import FeeOptions
from coordinatord.market.node import RetryingProvider
from coordinatord.market.preflight import estimate_costs
from coordinatord.market.reading import read_market
from coordinatord.market.trial_token import MAIN_NETWORKS, reject_main_network
from devnet.anvil import Anvil
from tests.integration.coordinatord.market.ground import QUICK, SPAN, Ground, created, key_of

IMPATIENT = attrs.evolve(QUICK, timeout_seconds=0.2)


class Killed(BaseException):
    """Like a signal, it passes every error handler."""


class MortalProvider(RetryingProvider):
    """Kill the run before its first broadcast of a transaction, and after the second broadcast of the same one. The
    first `others` transactions pass."""

    def __init__(self, url: str, others: int) -> None:
        super().__init__(url)
        self.others = others
        self.seen: Counter[str] = Counter()

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        if method != "eth_sendRawTransaction":
            return super().make_request(method, params)
        [raw] = params
        self.seen[raw] += 1
        if self.seen[raw] == 1 and len(self.seen) > self.others:
            raise Killed
        answer = super().make_request(method, params)
        if self.seen[raw] == 2:
            raise Killed
        return answer


def killed(ground: Ground, others: int = 0) -> None:
    """A run that records a transaction and dies before broadcasting it."""
    with pytest.raises(Killed):
        deploy(ground.deployment(node=mortal(ground, others)), ground.out, SPAN)


def mortal(ground: Ground, others: int = 0) -> Web3:
    url = str(cast("RetryingProvider", ground.node.provider).endpoint_uri)
    return Web3(MortalProvider(url, others), middleware=[])


@pytest.mark.long
def test_killed_deployment_resumes_without_duplicates(ground: Ground) -> None:
    plan = deployment_steps(ground.terms, ground.deployer.address)
    deployment, deaths, book = ground.deployment(node=mortal(ground)), 0, None
    while book is None:
        try:
            book = deploy(deployment, ground.out, SPAN)
        except Killed:
            deaths += 1
    assert deaths == 2 * len(plan)
    assert ground.sent() == len(plan)
    assert AddressBook.parse(ground.out.read_bytes()) == book


@pytest.mark.long
def test_process_that_is_killed_while_it_waits_goes_on(ground: Ground, anvil: Anvil) -> None:
    key_file, market_file = ground.folder / "key", ground.folder / "market.json"
    key_file.write_text(ground.wallets.with_role("client")[3].private_key)
    key_file.chmod(0o600)
    terms = ground.terms.as_json()
    models = [{"id": m.model_id, "name": m.name} for m in ground.terms.models]
    market_file.write_text(json.dumps({k: v for k, v in terms.items() if v is not None} | {"models": models}))
    command = [
        *(sys.executable, "-m", "coordinatord", "market", "deploy", "--rpc-url", anvil.rpc_url),
        *("--terms", str(market_file), "--out", str(ground.out), "--key-file", str(key_file)),
        *("--confirmations", "1", "--poll", "0.05"),
    ]
    ground.rpc("evm_setAutomine", False)
    try:
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"RPC_URL": ""})
        deadline = time.monotonic() + 60
        while not int(ground.rpc("txpool_status")["pending"], 16):
            assert first.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it broadcast nothing"
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        assert not ground.out.exists()
    finally:
        ground.rpc("evm_setAutomine", True)
    ground.rpc("evm_mine")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ground.sent() == len(deployment_steps(ground.terms, ground.deployer.address))
    assert AddressBook.parse(ground.out.read_bytes()).paytoken == bytes.fromhex(ground.token.address[2:])


def test_run_that_goes_on_with_other_terms_is_refused(ground: Ground) -> None:
    killed(ground, others=1)
    other = attrs.evolve(ground.terms, fee_bps=301)
    with pytest.raises(Fatal, match="whose fee_bps was 300; now it is 301"):
        deploy(ground.deployment(other), ground.out, SPAN)


def test_deployment_recovers_from_a_foreign_nonce(ground: Ground) -> None:
    killed(ground)
    mint = ground.token.build_call("foreign", "mint", ground.deployer.address, 1)
    ground.send(ground.deployer, mint)
    with pytest.raises(Fatal, match=r"used nonce 1, so that 0x.* can never be mined"):
        deploy(ground.deployment(), ground.out, SPAN)
    deploy(ground.deployment(), ground.out, SPAN)
    assert ground.sent() == 1 + len(deployment_steps(ground.terms, ground.deployer.address))


def test_step_that_a_reorganisation_took_away_is_broadcast_again(ground: Ground) -> None:
    before = ground.rpc("evm_snapshot")
    killed(ground, others=1)
    assert _journal(ground.out)["deploy ProviderRegistry"]["block"] is not None
    ground.rpc("evm_revert", before)
    assert ground.sent() == 0
    ground.deployed()
    assert ground.sent() == len(deployment_steps(ground.terms, ground.deployer.address))


def test_call_of_an_address_without_code_is_not_sent(ground: Ground) -> None:
    with pytest.raises(Retryable, match="the node has no contract at 0x7777"):
        ground.send(ground.deployer, ContractCall("nothing", "0x" + "77" * 20, b""))
    assert ground.sent() == 0


def test_waiting_transaction_is_replaced_only_on_request(ground: Ground) -> None:
    ground.rpc("evm_setAutomine", False)
    try:
        for _ in range(2):
            with pytest.raises(Fatal, match="--replace"):
                deploy(ground.deployment(options=IMPATIENT), ground.out, SPAN)
        assert [len(step["attempts"]) for step in _journal(ground.out).values()] == [1]
        with pytest.raises(Fatal, match="not confirmed"):
            deploy(ground.deployment(options=attrs.evolve(IMPATIENT, replace=True)), ground.out, SPAN)
        [step] = _journal(ground.out).values()
        assert len({attempt["hash"] for attempt in step["attempts"]}) == 2
        assert int(ground.rpc("txpool_status")["pending"], 16) == 1
    finally:
        ground.rpc("evm_setAutomine", True)
    ground.rpc("evm_mine")
    deploy(ground.deployment(), ground.out, SPAN)
    assert _journal(ground.out)["deploy ProviderRegistry"]["mined"] == step["attempts"][1]["hash"]
    assert ground.sent() == len(deployment_steps(ground.terms, ground.deployer.address))


@pytest.mark.long
def test_finished_deployment_is_verified_and_sends_nothing(ground: Ground) -> None:
    book = ground.deployed()
    sent = ground.sent()
    assert ground.deployed() == book
    assert ground.sent() == sent


def test_address_book_of_another_deployment_is_not_overwritten(ground: Ground) -> None:
    ground.out.write_text("{}")
    with pytest.raises(Fatal, match="already exists"):
        ground.deployed()
    assert (ground.out.read_text(), ground.sent()) == ("{}", 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chain_id": 1}, "the terms are for chain 1, but the RPC endpoint serves chain 31337"),
        ({"token": "0x" + "77" * 20}, "there is no contract at 0x7777"),
        ({"decimals": 18}, r"nothing was sent: token: decimals"),
        ({"token_name": "Other Dollar"}, r"nothing was sent: token: signing domain of name 'Other Dollar'"),
        ({"token_version": "2"}, r"nothing was sent: .*token: receiveWithAuthorization as signed"),
    ],
)
def test_wrong_chain_or_token_is_refused_before_sending(ground: Ground, change: dict[str, object], said: str) -> None:
    with pytest.raises(Fatal, match=said):
        ground.deployed(attrs.evolve(ground.terms, **change))
    assert ground.sent() == 0
    assert list(ground.folder.iterdir()) == []


def test_contract_that_is_no_token_is_refused(ground: Ground) -> None:
    registry = created(ground.node, ground.deployer, "ProviderRegistry", ground.deployer.address, 1)
    with pytest.raises(Fatal, match=r"has no valid decimals\(\), so it is not a token"):
        ground.deployed(attrs.evolve(ground.terms, token=registry.address))


def test_token_refusing_a_signature_is_reported_by_its_error(ground: Ground) -> None:
    ground.send(ground.deployer, ground.token.build_call("pause", "pause"))
    with pytest.raises(Fatal, match=r"refused: EnforcedPause\(\)"):
        ground.deployed()


def test_token_that_takes_what_nobody_signed_is_refused(ground: Ground) -> None:
    ground.rpc("anvil_setCode", "0x" + "77" * 20, "0x600160005260206000f3")  # answers 1 to everything
    gullible = attrs.evolve(ground.terms, token="0x" + "77" * 20, decimals=1, token_name="any", token_version="1")
    with pytest.raises(Fatal) as refused:
        ground.deployed(gullible)
    for fact in (
        *("receiveWithAuthorization with a wrong signature", "transferWithAuthorization with a wrong signature"),
        *("receiveWithAuthorization sent by another", "signing domain", "authorizationState of a fresh nonce"),
    ):
        assert fact in str(refused.value).partition("nothing was sent: ")[2]


def test_high_fees_or_missing_funds_send_nothing(ground: Ground) -> None:
    with pytest.raises(Fatal, match=r"exceed --max-fee 0\.000000001"):
        deploy(ground.deployment(options=attrs.evolve(QUICK, fees=FeeOptions(max_fee=1))), ground.out, SPAN)
    ground.rpc("anvil_setBalance", ground.deployer.address, hex(10**12))
    with pytest.raises(Fatal, match=r"has 0\.000001 of native funds"):
        ground.deployed()
    assert ground.sent() == 0


def test_dry_run_sends_nothing_and_overestimates(ground: Ground) -> None:
    said: list[str] = []
    dry_run(ground.node, ground.deployer.address, ground.terms, QUICK, said.append)
    assert "deploy JobRegistry" in "\n".join(said)
    assert ground.sent() == 0
    plan = deployment_steps(ground.terms, ground.deployer.address)
    estimated = {
        step.key: cost.gas
        for step, cost in zip(plan, estimate_costs(ground.node, ground.deployer.address, plan), strict=True)
    }
    ground.deployed()
    for key, entry in _journal(ground.out).items():
        used = int(ground.rpc("eth_getTransactionReceipt", entry["mined"])["gasUsed"], 16)
        assert used <= estimated[key] <= 3 * used, key


@pytest.mark.long
def test_new_owner_accepts_with_the_printed_calls(ground: Ground) -> None:
    book = ground.deployed()
    calls = acceptance_calls(read_market(ground.node, book, SPAN, lambda _: None))
    assert len(calls) == 3
    ground.send(key_of(ground.heir), *calls)
    market = read_market(ground.node, book, SPAN, lambda _: None)
    assert {registry.owner for registry in market.registries.values()} == {ground.heir.address}
    assert acceptance_calls(market) == []


def test_contract_refusal_is_explained_by_its_error_name(ground: Ground) -> None:
    book = ground.deployed()
    jobs = Contract("JobRegistry", "0x" + book.job_registry.hex())
    with pytest.raises(Fatal, match=r"too dear: the contract would reject the call: FeeTooHigh\(\)"):
        ground.send(ground.deployer, ContractCall("too dear", jobs.address, jobs.calldata("setFees", 2001, 0)))
    stranger = key_of(ground.wallets.with_role("client")[1])
    with pytest.raises(Fatal, match=rf"OwnableUnauthorizedAccount\({stranger.address}\)"):
        ground.send(stranger, ContractCall("not mine", jobs.address, jobs.calldata("pause")))


def _journal(out: Path) -> dict[str, dict[str, object]]:
    steps_of: dict[str, dict[str, object]] = json.loads(journal_path(out).read_text())["steps"]
    return steps_of


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
