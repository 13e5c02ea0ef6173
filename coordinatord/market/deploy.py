"""Deploy a market: check, deploy, wire and configure the contracts, hand them over, verify, write the address book.

A run may be killed at any moment. The same command then resumes it (see `journal`). The address book is written last,
after the deployed market has been verified.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
from web3 import Web3

from common import artifacts
from common.address_book import AddressBook
from common.checks import CheckRow, check_lines, wrong_names
from common.daemon.process import Fatal
from common.keccak import keccak256
from common.scalars import hex_of
from common.text_table import terminal_columns
from coordinatord.chain.signing.signers import TransactionSigner
from coordinatord.market import explorer
from coordinatord.market.contracts import Contract, ContractCall
from coordinatord.market.deployment import ASKS, JOBS, PROVIDERS, REGISTRIES, deployment_steps
from coordinatord.market.fees import current_fees
from coordinatord.market.journal import DeploymentJournal, open_journal, replace_file
from coordinatord.market.node import genesis_hash, read_balance
from coordinatord.market.preflight import check_chain_and_token, estimate_costs, format_plan, require_funds
from coordinatord.market.reading import MarketState, read_market
from coordinatord.market.sending import Report, Sender, SendingStep, SendOptions
from coordinatord.market.status import check_integrity, check_terms
from coordinatord.market.terms import MarketTerms
from coordinatord.market.token_checks import TokenFacts
from coordinatord.market.unsigned_calls import as_text


@attrs.frozen(slots=True)
class MarketDeployment:
    """Deployment of one market by one account on one chain."""

    node: Web3
    signer: TransactionSigner
    terms: MarketTerms
    options: SendOptions
    report: Report

    def send_steps(self, facts: TokenFacts, journal: DeploymentJournal) -> AddressBook:
        """Send the transactions that the journal does not have yet. Return the address book of the deployed market."""
        sender = Sender(self.node, self.signer, self.terms.chain_id, self.options, journal, self.report)
        steps = deployment_steps(self.terms, self.signer.address)
        sender.run(steps)
        addresses = {name: bytes.fromhex(address[2:]) for name, address in sender.addresses(steps).items()}
        blocks = [entry.block for entry in journal.entries.values() if entry.address and entry.block is not None]
        return AddressBook(
            chain_id=self.terms.chain_id,
            deploy_block=min(blocks),
            job_registry=addresses[JOBS],
            provider_registry=addresses[PROVIDERS],
            ask_registry=addresses[ASKS],
            paytoken=bytes.fromhex(self.terms.token[2:]),
            payment_token_decimals=facts.decimals,
            token_domain=facts.domain,
        )

    def identity(self) -> dict[str, object]:
        """Return the values that must be equal when a deployment is resumed. Otherwise the run would mix two
        markets."""
        return {
            "genesis": genesis_hash(self.node),
            "deployer": self.signer.address,
            "contracts": {name: hex_of(keccak256(artifacts.load_artifact(name).bytecode)) for name in REGISTRIES},
            "terms": self.terms.as_json(),
        }

    def show_costs(self, journal: DeploymentJournal) -> None:
        """Show the costs of the remaining steps. Raise Fatal when the account cannot pay for them."""
        remaining = [
            step for step in deployment_steps(self.terms, self.signer.address) if step.key not in journal.entries
        ]
        if remaining:
            _show_costs(self.node, self.signer.address, remaining, self.options, self.report)


def deploy(
    deployment: MarketDeployment, out: Path, log_range_blocks: int, verification: Path | None = None
) -> AddressBook:
    """Check, deploy, verify and write the address book. Raise Fatal with the reason and the remedy."""
    node, terms, report = deployment.node, deployment.terms, deployment.report
    facts, rows = check_chain_and_token(node, terms)
    report(check_lines(rows, terminal_columns()))
    path = journal_path(out)
    if out.exists() and not path.exists():
        raise Fatal(f"--out {out} already exists, and no journal beside it can be resumed: name another file")
    with open_journal(path, deployment.identity()) as journal:
        deployment.show_costs(journal)
        book = deployment.send_steps(facts, journal)
        report("\nverifying")
        market = read_market(node, book, log_range_blocks, report)
        rows = check_integrity(market, book) + check_terms(market, terms)
        report(check_lines(rows, terminal_columns()))
        _require_no_wrong_rows(rows)
        replace_file(out, json.dumps(book.as_json(), indent=2) + "\n")
    report(f"\nthe address book: {out}")
    if verification is not None:
        explorer.write_verification_files(verification, node, market)
        report(f"for explorers: {verification}")
    _print_acceptance_calls(market, report)
    return book


def dry_run(node: Web3, deployer: str, terms: MarketTerms, options: SendOptions, report: Report) -> None:
    """Show the checks, the plan and its costs. Sign nothing."""
    _, rows = check_chain_and_token(node, terms)
    report(check_lines(rows, terminal_columns()))
    _show_costs(node, deployer, deployment_steps(terms, deployer), options, report)


def _show_costs(
    node: Web3, deployer: str, remaining: Sequence[SendingStep], options: SendOptions, report: Report
) -> None:
    costs, fees, balance = (
        estimate_costs(node, deployer, remaining),
        current_fees(node, options.fees),
        read_balance(node, deployer),
    )
    report("\n" + format_plan(costs, fees, balance, deployer) + "\n")
    require_funds(costs, fees, balance, deployer)


def journal_path(out: Path) -> Path:
    return out.with_name(out.name + ".journal")


def acceptance_calls(market: MarketState) -> list[ContractCall]:
    """Return the calls with which the new owner accepts the ownership of the registries."""
    return [
        Contract(name, registry.contract.address).build_call(
            f"{name}: accept ownership, as {registry.pending_owner}", "acceptOwnership"
        )
        for name, registry in market.registries.items()
        if registry.pending_owner is not None
    ]


def _require_no_wrong_rows(rows: Sequence[CheckRow]) -> None:
    wrong = wrong_names(rows)
    if wrong:
        raise Fatal(f"the deployed market differs from the terms, so no address book is written: {'; '.join(wrong)}")


def _print_acceptance_calls(market: MarketState, report: Report) -> None:
    calls = acceptance_calls(market)
    if calls:
        report("\nthe new owner must send these calls; until then, the deployer's key still controls the registries:\n")
        report(as_text(calls))
