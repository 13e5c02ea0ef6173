"""Gas of each operation as a separate transaction on a fresh anvil, and the savings of coalescing.

Exits with 1 when 50 coalesced posts do not save at least 15 % of the gas of 50 single ones.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3 import HTTPProvider, Web3
from web3.contract import Contract
from web3.types import RPCEndpoint, TxReceipt

from common import artifacts
from devnet.anvil import BLOCK_GAS_LIMIT, HARDFORK

CONTRACTS_DIR = Path(artifacts.__file__).parent / "contracts"
COALESCED = 50
LEAST_SAVING = 0.15
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
MODEL, SLA = 7, 3600
RATE_IN, RATE_OUT, UNITS_IN, UNITS_OUT = 2_000_000, 6_000_000, 1000, 4096
CAP = 2 * UNITS_IN + 6 * UNITS_OUT
FEE_BPS, GAS_FEE = 250, 1500
AMOUNT = CAP + CAP * FEE_BPS // 10_000 + GAS_FEE
TYPES = {
    "Order": "bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,uint32 unitsIn,"
    "uint32 unitsOut,uint32 designated,uint64 expiresAt",
    "ReceiveWithAuthorization": "address from,address to,uint256 value,uint256 validAfter,"
    "uint256 validBefore,bytes32 nonce",
    "Claim": "bytes32 jobId,uint64 issuedAt",
    "Settle": "bytes32 jobId,uint32 completionTok,uint64 issuedAt",
    "Fail": "bytes32 jobId,uint64 issuedAt",
    "Cancel": "bytes32 jobId,uint64 issuedAt",
}
Call = Any  # web3 builds a separate class for each contract function


@contextmanager
def anvil() -> Iterator[Web3]:
    [binary] = CONTRACTS_DIR.glob("node_modules/@foundry-rs/anvil-*/bin/anvil")  # for this platform
    command = [
        str(binary),
        "--port",
        "0",
        "--hardfork",
        HARDFORK,
        "--gas-limit",
        str(BLOCK_GAS_LIMIT),
        "--enable-tx-gas-limit",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            listening = (re.search(r"Listening on (\S+)", line) for line in process.stdout)
            address = next(match[1] for match in listening if match)
            Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the node
            yield Web3(HTTPProvider(f"http://{address}"))
        finally:
            process.terminate()


class Job(NamedTuple):
    """Data needed to act on a posted job."""

    job_id: bytes
    terms: tuple[object, ...]
    pay_sig: bytes


class Market:
    """The deployed contracts, an admin that is also the relayer, and a provider with capacity for every claim."""

    def __init__(self, w3: Web3) -> None:
        self.w3 = w3
        self.admin, treasury, *_ = list(w3.eth.accounts)
        self.operator: LocalAccount = Account.create()
        w3.provider.make_request(RPCEndpoint("anvil_setBalance"), [self.operator.address, hex(10**20)])
        w3.provider.make_request(RPCEndpoint("anvil_impersonateAccount"), [self.operator.address])
        self.token = self._deploy("DevToken", self.admin)
        self.providers = self._deploy("ProviderRegistry", self.admin, GAS_FEE // 5)
        self.jobs = self._deploy(
            "JobRegistry", self.admin, self.token.address, self.providers.address, treasury, 100 * GAS_FEE
        )
        self.asks = self._deploy("AskRegistry", self.admin, self.providers.address)
        self._orders = 0
        for registry in (self.jobs, self.providers, self.asks):
            self.send(registry.functions.setRelayer(self.admin, True))
        jobs, providers = self.jobs.functions, self.providers.functions
        self.send(providers.setJobRegistry(self.jobs.address))
        self.send(jobs.setModel(MODEL, "acme/word-mill-7b", True, "acme", "{}"))
        self.send(jobs.setSla(SLA, True))
        self.send(jobs.setFees(FEE_BPS, GAS_FEE))
        self.send(providers.register(), self.operator.address)
        self.send(providers.requestCapacity(10_000, self.now() + 1, b""), self.operator.address)
        self.send(providers.setCeiling(1, 10_000))
        self.send(providers.setListed(1, True))
        self.send(providers.setAllowAllModels(1, True))

    def now(self) -> int:
        return int(self.w3.eth.get_block("latest")["timestamp"])

    def pass_time(self, seconds: int) -> None:
        self.w3.provider.make_request(RPCEndpoint("evm_increaseTime"), [seconds])
        self.w3.provider.make_request(RPCEndpoint("evm_mine"), [])

    def send(self, call: Call, sender: str | None = None) -> TxReceipt:
        receipt = self.w3.eth.wait_for_transaction_receipt(call.transact({"from": sender or self.admin}))
        assert receipt["status"] == 1
        return receipt

    def relay(self, registry: Contract, calls: Sequence[Call]) -> float:
        """Return gas per call of one coalesced transaction. All its calls must be accepted."""
        encoded = [registry.encode_abi(call.fn_name, args=call.args) for call in calls]
        receipt = self.send(registry.functions.relay(encoded))
        refused = artifacts.event_topic(artifacts.load_artifact("JobRegistry"), "CallRefused")
        assert all(log["topics"][0] != refused for log in receipt["logs"])
        return receipt["gasUsed"] / len(calls)

    def new_owner(self) -> LocalAccount:
        account: LocalAccount = Account.create()
        self.send(self.token.functions.mint(account.address, 10**12))
        return account

    def post(self, owner: LocalAccount) -> tuple[Job, Call]:
        """Return the job as in its event, and the call that posts it."""
        self._orders += 1
        c = bytes(Web3.keccak(self._orders))
        expires_at = self.now() + 7200
        order = (c, MODEL, SLA, RATE_IN, RATE_OUT, UNITS_IN, UNITS_OUT, 0, expires_at)
        job_id = bytes(Web3.keccak(bytes.fromhex(owner.address[2:]) + c))
        payment = (owner.address, self.jobs.address, AMOUNT, 0, expires_at + 1, job_id)
        pay_sig = self._sign(owner, self.token, ("Dev Dollar", "1"), "ReceiveWithAuthorization", payment)
        order_sig = self._sign(owner, self.jobs, ("SVC Jobs", "2"), "Order", order)
        job = Job(job_id, (order, owner.address, FEE_BPS, GAS_FEE), pay_sig)
        return job, self.jobs.functions.post(order, owner.address, AMOUNT, CID, order_sig, pay_sig)

    def op(self, signer: LocalAccount, kind: str, *message: Any) -> bytes:
        return self._sign(signer, self.jobs, ("SVC Jobs", "2"), kind, message)

    def _deploy(self, name: str, *arguments: str | int) -> Contract:
        artifact = artifacts.load_artifact(name)
        factory = self.w3.eth.contract(abi=list(artifact.abi), bytecode=artifact.bytecode)
        deployed = self.w3.eth.wait_for_transaction_receipt(
            factory.constructor(*arguments).transact({"from": self.admin})
        )
        show(f"deploy {name}", deployed["gasUsed"])
        address = deployed["contractAddress"]
        assert address is not None
        return self.w3.eth.contract(address, abi=list(artifact.abi))

    def _sign(
        self,
        signer: LocalAccount,
        verifier: Contract,
        domain: tuple[str, str],
        kind: str,
        message: Sequence[Any],
    ) -> bytes:
        fields = [dict(zip(("type", "name"), field.split(), strict=True)) for field in TYPES[kind].split(",")]
        chain_id = self.w3.eth.chain_id
        signed = signer.sign_typed_data(
            {
                "name": domain[0],
                "version": domain[1],
                "chainId": chain_id,
                "verifyingContract": verifier.address,
            },
            {kind: fields},
            dict(zip((field["name"] for field in fields), message, strict=True)),
        )
        return bytes(signed.signature)


def show(what: str, gas: float, single: float | None = None) -> None:
    saving = "" if single is None else f"   {1 - gas / single:6.1%} less than alone"
    print(f"{what:<36}{gas:>12,.0f}{saving}")


def measure(market: Market) -> float:
    """Print the table. Return the smaller of the savings of coalesced posts."""
    jobs, operator = market.jobs.functions, market.operator
    regular = market.new_owner()

    def claim(job: Job) -> Call:
        sig = market.op(operator, "Claim", job.job_id, market.now())
        return jobs.claim(job.terms, market.now(), sig, job.pay_sig)

    def settle(job: Job) -> Call:
        sig = market.op(operator, "Settle", job.job_id, 1000, market.now())
        return jobs.settle(job.terms, 1000, market.now(), CID, sig)

    def fail(job: Job) -> Call:
        return jobs.fail(job.terms, market.now(), market.op(operator, "Fail", job.job_id, market.now()))

    def reclaim(job: Job) -> Call:
        return jobs.reclaim(job.terms)

    def cancel(job: Job) -> Call:
        return jobs.cancel(job.terms, market.now(), market.op(regular, "Cancel", job.job_id, market.now()))

    endings: dict[str, Callable[[Job], Call]]
    endings = {"settle": settle, "fail": fail, "reclaim": reclaim, "cancel": cancel}
    alone: dict[str, list[int]] = {name: [] for name in ("post", "claim", *endings)}
    for name, ending in [*endings.items()] * 3:
        job, post = market.post(regular)
        alone["post"].append(market.send(post)["gasUsed"])
        if name != "cancel":
            alone["claim"].append(market.send(claim(job))["gasUsed"])
        if name == "reclaim":
            market.pass_time(SLA + 1)
        alone[name].append(market.send(ending(job))["gasUsed"])
    for name, figures in alone.items():
        show(name, median(figures))

    for count in (1, 8, 64):
        quotes = [(1 + i, SLA, RATE_IN, RATE_OUT) for i in range(count)]
        publish = market.asks.functions.publish(1, market.now() + count, quotes, b"")
        show(f"publish {count} asks", market.send(publish, operator.address)["gasUsed"])

    apart = sum(median(alone[name]) for name in ("post", "claim", "settle"))
    show("a job: post, claim, settle", apart)
    for count in (1, 16):
        posted = [market.post(regular) for _ in range(count)]
        chains = [call for job, post in posted for call in (post, claim(job), settle(job))]
        show(f"a job, {count} relayed in one block", 3 * market.relay(market.jobs, chains), apart)

    savings = []
    strangers = [market.new_owner() for _ in range(COALESCED)]
    for what, owners in (("one owner", [regular] * COALESCED), ("as many owners", strangers)):
        posts = [market.post(owner) for owner in owners]
        coalesced = market.relay(market.jobs, [post for _, post in posts])
        show(f"post, {COALESCED} relayed, {what}", coalesced, median(alone["post"]))
        savings.append(1 - coalesced / median(alone["post"]))
        claims = market.relay(market.jobs, [claim(job) for job, _ in posts])
        show(f"claim, {COALESCED} relayed, {what}", claims, median(alone["claim"]))
        settles = market.relay(market.jobs, [settle(job) for job, _ in posts])
        show(f"settle, {COALESCED} relayed, {what}", settles, median(alone["settle"]))
    return min(savings)


def main() -> int:
    with anvil() as w3:
        saving = measure(Market(w3))
    return 0 if saving >= LEAST_SAVING else 1


if __name__ == "__main__":
    sys.exit(main())
