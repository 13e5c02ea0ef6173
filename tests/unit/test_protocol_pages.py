"""The protocol's pages match the code: readers accept the examples, and numbers, names and signatures are equal."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from common import artifacts
from common.address_book import AddressBook, TokenDomain
from common.api.fields import read_object
from common.domains import Domains
from common.keccak import keccak256
from common.quotes import FeeTerms
from common.secp256k1 import recover_address
from coordinatord.api.batches.batches import BatchBody, read_batch
from coordinatord.api.batches.line_checks import LineChecks, PaidLine
from coordinatord.api.batches.line_reader import InputLine
from coordinatord.api.batches.lines_sql import EndedLine
from coordinatord.api.batches.output import error_line, output_line
from coordinatord.api.batches.plan import PlanBody
from coordinatord.api.book import bodies as book
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.escrow.release import ReleaseBody
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, read_submission
from coordinatord.api.provider_ops.asks import AsksBody
from coordinatord.api.provider_ops.ops import OP_CLASSES, read_op
from coordinatord.api.sessions.sessions import SessionBody
from tests.vectors.vector_file import Case, cases

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / f"docs/protocol/{name}.md").read_text("utf-8") for name in ("guide", "formats", "contracts")}
PAGE = "\n".join(PAGES.values())
SECTIONS = {
    heading: text
    for page in PAGES.values()
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
}
REGISTRIES = ("JobRegistry", "ProviderRegistry", "AskRegistry")
SIGNATURE = "0x" + "11" * 65  # for examples without a signature


def examples(section: str, kind: str) -> list[Any]:
    """Return a section's fenced blocks of this kind as JSON values."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```$", SECTIONS[section], re.DOTALL | re.MULTILINE)
    texts = [text for block in blocks for text in (block.splitlines() if kind == "jsonl" else [block])]
    return [json.loads(text.replace('"0x…"', f'"{SIGNATURE}"')) for text in texts]


@pytest.fixture(name="order")
def _order() -> Case:
    [one] = cases("worked_order.json")
    return one


def job_row(state: int, because: int) -> JobRow:
    blank: dict[type, object] = {bytes: b"", str: "0", int: 0}
    plain = {field.name: blank.get(field.type or int) for field in attrs.fields(JobRow)}
    return JobRow(**{**plain, "state": state, "ended_because": because})  # type: ignore[arg-type]


# --- contracts ---


def spelled(field: Any) -> str:
    """Return the field in Solidity's syntax: its type, then its name if it has one."""
    inside = f"({', '.join(map(spelled, field['components']))}){field['type'][5:]}" if "components" in field else ""
    kind = (inside or str(field["type"])) + (" indexed" if field.get("indexed") else "")
    return f"{kind} {field['name']}".rstrip()


def types_of(text: str) -> str:
    """Return the text that is hashed: the types, without spaces and names."""
    return re.sub(r"( indexed)? \w+(?=[,)]|$)", "", text).replace(" ", "")


def spelled_blocks(section: str) -> list[tuple[str, str, str, str, str]]:
    """Return (registry, hash, name, arguments, returns) of each line, with the structures written out."""
    structs = dict(re.findall(r"^(Order|Posted|Ask) +(\(.+\))", SECTIONS["Functions"], re.MULTILINE))
    structs["Posted"] = structs["Posted"].replace("Order", structs["Order"])
    found = []
    for registry, lines in re.findall(r"^(\w+) registry\n((?:  0x.*\n)+)", SECTIONS[section], re.MULTILINE):
        for line in lines.splitlines():
            parts = re.fullmatch(r"  (0x\w+)  (\w+)\((.*?)\)(?: returns \((.*)\))?", line)
            assert parts is not None, line
            hashed, name, arguments, returns = parts.groups()
            whole = re.sub(r"\b(Order|Posted|Ask)\b", lambda struct: structs[struct[0]], arguments)
            found.append((f"{registry.capitalize()}Registry", hashed, name, whole, returns or ""))
    return found


def compared(told: str, fields: list[Any]) -> None:
    """Compare types, and names where the contract has them. Some getters leave names out."""
    assert ", ".join(map(spelled, fields)) in {told, types_of(told)}


def test_functions_have_the_contracts_signatures_and_names() -> None:
    told = spelled_blocks("Functions")
    assert {registry for registry, *_ in told} == set(REGISTRIES)
    for registry, selector, name, arguments, returns in told:
        entry = next(
            e for e in artifacts.load_artifact(registry).abi if (e["type"], e.get("name")) == ("function", name)
        )
        compared(arguments, entry["inputs"])
        compared(returns, entry["outputs"])
        assert selector == f"0x{keccak256(f'{name}({types_of(arguments)})'.encode())[:4].hex()}"


def test_events_have_the_contracts_topics_and_names() -> None:
    told = spelled_blocks("Events of the contracts")
    assert {registry for registry, *_ in told} == set(REGISTRIES)
    for registry, topic, name, arguments, _ in told:
        entry = next(e for e in artifacts.load_artifact(registry).abi if (e["type"], e.get("name")) == ("event", name))
        compared(arguments, entry["inputs"])
        assert topic == f"0x{keccak256(f'{name}({types_of(arguments)})'.encode()).hex()}"
    jobs = {
        e["name"] for e in artifacts.load_artifact("JobRegistry").abi if e["type"] == "event" and "Job" in e["name"]
    }
    assert {name for _, _, name, *_ in told} >= jobs


def test_signed_types_are_those_of_the_vectors() -> None:
    told = re.findall(r"^(\w+\(.*\))$", SECTIONS["Typed data"], re.MULTILINE)
    assert set(told) == {case["type"] for case in cases("eip712.json")}


# --- examples ---


def test_buyers_bodies_are_read(order: Case) -> None:
    probe, quote = examples("A buyer in seven calls", "json")
    assert isinstance(read_submission(probe), MarketProbe)
    body = read_submission(quote)
    assert isinstance(body, OrderBody)
    assert (
        recover_address(domains_of(order).jobs.digest(body), body.signature)
        == body.owner
        == bytes.fromhex(order["owner"][2:])
    )


def test_providers_bodies_are_read() -> None:
    session, identity, capacity, asks, claim, fail = examples("A provider in eight calls", "jsonl")
    assert read_object(SessionBody, session).role == "provider"
    assert [type(read_op(each)) for each in (identity, capacity, claim, fail)] == [
        OP_CLASSES[op] for op in ("set_identity", "request_capacity", "claim", "fail")
    ]
    assert len(read_object(AsksBody, asks).snapshot.quotes) == 1


def test_row_of_the_book_has_the_members_that_are_sent(order: Case) -> None:
    [row] = examples("A provider in eight calls", "json")
    sent = msgspec.to_builtins(book.job_shape(job_row(0, 0)))
    assert {name: type(value) for name, value in row.items()} == {
        name: type(None) if name == "result_cid" else type(value) for name, value in sent.items()
    }
    assert (row["job_id"], row["c"], row["task_cid"]) == (order["job_id"], order["c"], order["task_cid"])


def test_release_is_of_the_worked_order(order: Case) -> None:
    [body] = examples("Release", "json")
    read = read_object(ReleaseBody, body)
    assert (read.job_id.hex(), read.seed_wrap.hex()) == (order["job_id"][2:], order["seed_wrap"][2:])
    assert read.ct_hash.hex() == order["ct_hash"][2:]


def test_batch_bodies_are_read() -> None:
    plan, batch = examples("Batches", "json")
    assert isinstance(read_batch(plan), PlanBody)
    assert isinstance(read_batch(batch), BatchBody)


def domains_of(order: Case) -> Domains:
    def address(name: str) -> bytes:
        return bytes.fromhex(order[name][2:])

    token = TokenDomain(order["token_name"], order["token_version"])
    nobody = bytes(19) + b"\x01"
    registry = address("job_registry")
    return Domains.of(AddressBook(int(order["chain_id"]), 0, registry, nobody, nobody, address("token"), 6, token))


@pytest.fixture(name="checks")
def _checks(order: Case) -> LineChecks:
    registry, terms = bytes.fromhex(order["job_registry"][2:]), FeeTerms(int(order["fee_bps"]), int(order["gas_fee"]))
    before_it_expires = int(order["order"]["expiresAt"]) - 60
    return LineChecks(domains_of(order), registry, "/v1/responses", terms, before_it_expires)


def test_batch_line_passes_every_check(checks: LineChecks, order: Case) -> None:
    line = examples("Batches", "jsonl")[0]
    [good] = checks.check_lines([InputLine(1, json.dumps(line).encode())])
    assert isinstance(good, PaidLine)
    assert good.paid_order.order.job_id.hex() == order["job_id"][2:]


def test_lines_of_batch_files_are_written_so() -> None:
    _, output, failed, refused = examples("Batches", "jsonl")
    batch = output["id"].removeprefix("batch_req_").rpartition("_")[0]
    svc = output["svc"]
    result = json.dumps({name: value for name, value in svc.items() if name != "job_id"})
    settled = EndedLine(1, bytes.fromhex(svc["job_id"][2:]), None, None, False, result)
    assert json.loads(output_line(batch, settled)) == output
    ended = EndedLine(2, bytes.fromhex(failed["svc"]["job_id"][2:]), failed["error"]["code"], None, False, None)
    assert json.loads(error_line(batch, ended)) == failed
    ended = EndedLine(3, None, refused["error"]["code"], refused["error"]["message"], False, None)
    assert json.loads(error_line(batch, ended)) == refused
