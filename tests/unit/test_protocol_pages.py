"""The protocol's pages match the code: readers accept the examples, and numbers, names and signatures are equal."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import msgspec
import pytest
from nacl import bindings

from common import abi, artifacts
from common.address_book import AddressBook, TokenDomain
from common.api.errors import CONTRACT_ERRORS
from common.api.fields import read_object
from common.api.states import BatchStatus
from common.contract_events import call_data, returned_values
from common.domains import Domains
from common.envelope import ResultBody
from common.keccak import keccak256
from common.pricing.model_input import modality_of
from common.pricing.units import units_of
from common.quotes import FeeTerms
from common.refusal import Refused
from common.secp256k1 import recover_address
from common.settings.reader import settings_of
from coordinatord.api.batches.batches import BatchBody, read_batch
from coordinatord.api.batches.line_checks import LineChecks, PaidLine
from coordinatord.api.batches.line_reader import InputLine
from coordinatord.api.batches.lines_sql import EndedLine, LineRecord
from coordinatord.api.batches.output import error_line, output_line
from coordinatord.api.batches.plan import BATCH_WINDOWS_S, PlanBody
from coordinatord.api.book import bodies as book
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.escrow.release import ReleaseBody
from coordinatord.api.files.files_sql import UNATTACHED_LIFETIME
from coordinatord.api.files.foreign_lines import (
    MAX_CHECKED_LINE_BYTES,
    UNSEALED_CUSTOM_ID_MESSAGE,
    WRAPPED_LINE_MESSAGE,
)
from coordinatord.api.files.inspection import MAX_BATCH_LINES, LineInspection
from coordinatord.api.orders.answers import client_job_shape
from coordinatord.api.orders.bodies import MAX_INLINE_BYTES, MarketProbe, OrderBody, read_submission
from coordinatord.api.provider_ops.asks import AsksBody
from coordinatord.api.provider_ops.ops import MAX_EVIDENCE_BYTES, OP_CLASSES, read_op
from coordinatord.api.sessions.sessions import SessionBody
from coordinatord.api.sessions.sessions_sql import NONCE_LIFETIME, SESSION_LIFETIME
from coordinatord.base import clock
from coordinatord.run.config import Config
from svcd.backends.openai_usage import read_work_output
from svcd.journal.work import ModelWork
from tests.vectors.vector_file import Case, cases

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / f"docs/protocol/{name}.md").read_text("utf-8") for name in ("guide", "formats", "contracts")}
PAGE = "\n".join(PAGES.values())
SOLIDITY = {path.stem: path.read_text("utf-8") for path in (ROOT / "common/contracts/src").rglob("*.sol")}
SECTIONS = {
    heading: text
    for page in PAGES.values()
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
}
REGISTRIES = ("JobRegistry", "ProviderRegistry", "AskRegistry")
SIGNATURE = "0x" + "11" * 65  # for examples without a signature


def words(text: str) -> str:
    return " ".join(text.split())


def named(text: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", text))


def rows(section: str) -> Iterator[list[str]]:
    """Yield the rows of a section's tables as cells, without headers."""
    for table in re.findall(r"(?:^\|.*\n)+", SECTIONS[section], re.MULTILINE):
        for row in table.splitlines()[2:]:
            yield [cell.strip() for cell in row.strip("|").split(" | ")]


def examples(section: str, kind: str) -> list[Any]:
    """Return a section's fenced blocks of this kind as JSON values."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```$", SECTIONS[section], re.DOTALL | re.MULTILINE)
    texts = [text for block in blocks for text in (block.splitlines() if kind == "jsonl" else [block])]
    return [json.loads(text.replace('"0x…"', f'"{SIGNATURE}"')) for text in texts]


def constant(source: str, name: str) -> int:
    found = re.search(rf"constant {name} = ([\d_ +]+)(?: hours)?;", SOLIDITY[source])
    assert found is not None, f"{source} has no {name}"
    hours = 3600 if found[0].endswith(" hours;") else 1
    return sum(int(part) for part in found[1].replace("_", "").split("+")) * hours


@pytest.fixture(name="order")
def _order() -> Case:
    [one] = cases("worked_order.json")
    return one


# --- numbers ---


def sentences() -> list[str]:
    provider, jobs = "ProviderRegistry", "JobRegistry"
    defaults = {each.name: each.default for each in settings_of(Config)}
    within = constant(jobs, "OP_WINDOW")
    failing = constant(jobs, "FAILURE_WINDOW")
    lease, alive = (int(str(defaults[name])) // 1000 for name in ("match_lease_ms", "match_liveness_ms"))
    fail_grace = constant(provider, "GRACE_OF_A_FAIL")
    first, least, full = (constant(provider, f"{name}_REPUTATION") for name in ("FIRST", "LEAST", "FULL"))
    assert within == clock.MAX_OP_SKEW_S
    assert constant(provider, "MOST_AHEAD") == constant("AskRegistry", "MOST_AHEAD") == clock.MAX_SIGNED_AHEAD_S
    return [
        f"| Claim, Settle, Fail, Cancel | `issuedAt` | within {within} s of now, either way |",
        f"| Release | `issuedAt` | within {within} s of now, either way |",
        f"after now, at most {clock.MAX_ORDER_LIFETIME_S} s ahead",
        f"that was accepted; at most {clock.MAX_SIGNED_AHEAD_S} s ahead",
        f"the last one; at most {clock.MAX_SIGNED_AHEAD_S} s ahead",
        f"used once, is at most {NONCE_LIFETIME.seconds} s old",
        f"excused within {failing} s of `claimed_at`",
        f"names is gone after {UNATTACHED_LIFETIME.seconds} s",
        f"lease of a job lasts {lease} s and its poll counts as life for {alive} s",
        f"after {alive} s without a poll",
        f"the lease of {lease} s",
        f"a session lasts {SESSION_LIFETIME.total_seconds() / 3600:.0f} h",
        f"| reputation at first, least, most | {first}, {least}, {full} |",
        f"| grace at first, most | {constant(provider, 'FIRST_GRACE')}, {constant(provider, 'MOST_GRACE')} |",
        f"at most {constant(provider, 'GAIN_BY_SETTLING')}: the treasury's share / `pointPrice`",
        f"| a fail within {failing} s of the claim, while grace is {fail_grace} or more | {fail_grace} of grace",
        f"| any other fail | {constant(provider, 'LOSS_BY_FAILING')} of reputation |",
        f"| a reclaim | {constant(provider, 'LOSS_BY_RECLAIM')} of reputation |",
        f"capacity = max(1, ⌊reputation · min(requested, ceiling) / {full}⌋)",
        f"A container above {MAX_INLINE_BYTES:,} bytes",
        f"or, above {MAX_INLINE_BYTES:,} bytes, upload it",
        f"with 1 to {MAX_BATCH_LINES:,} lines that are not blank",
        f"`completion_window` is {' or '.join(f'`{window}` ({s} s)' for window, s in BATCH_WINDOWS_S.items())}",
    ]


@pytest.mark.parametrize("sentence", sentences())
def test_number_is_that_of_the_sources(sentence: str) -> None:
    assert words(sentence) in words(PAGE)


def test_capacity_is_computed_as_the_contract_does() -> None:
    assert "reputation / POINT * granted / FULL_REPUTATION" in SOLIDITY["ProviderRegistry"]
    assert "Math.min(requested, ceiling)" in SOLIDITY["ProviderRegistry"]


def test_tags_of_frames_are_those_of_the_library() -> None:
    prefix = "crypto_secretstream_xchacha20poly1305_TAG_"
    tags = [f"{name} {getattr(bindings, prefix + name)}" for name in ("MESSAGE", "PUSH", "REKEY", "FINAL")]
    assert f"tags        {', '.join(tags)}\n" in SECTIONS["Frames"]


# --- the life of a job ---


def enum(name: str) -> dict[int, str]:
    body = re.search(rf"enum {name} \{{(.*?)\}}", SOLIDITY["IJobRegistry"], re.DOTALL)
    assert body is not None
    return dict(enumerate(re.findall(r"^\s+(\w+),? //", body[1], re.MULTILINE)))


ENDINGS = {"CancelledByOwner": "cancel", "FailedByProvider": "fail", "Reclaimed": "reclaim", "Expired": "`expires_at`"}


def job_row(state: int, because: int) -> JobRow:
    blank: dict[type, object] = {bytes: b"", str: "0", int: 0}
    plain = {field.name: blank.get(field.type or int) for field in attrs.fields(JobRow)}
    return JobRow(**{**plain, "state": state, "ended_because": because})  # type: ignore[arg-type]


def test_life_of_a_job_has_each_state_and_ending_once() -> None:
    states, becauses = enum("State"), enum("EndedBecause")
    found = [row for row in rows("The life of a job") if re.match(r"\d \w+$", row[0])]
    told = [(int(row[0][0]), int(row[1])) for row in found]
    assert told == [(0, 0), (1, 0), (2, 1), *((3, because) for because in sorted(becauses) if because > 1)]
    for row, (state, because) in zip(found, told, strict=True):
        assert row[0] == f"{state} {states[state]}"
        assert row[2] == f"`{client_job_shape(job_row(state, because), 1).status}`"
        if state == 3:
            assert row[3].startswith(ENDINGS[becauses[because]])


def test_events_of_a_jobs_life_are_the_contracts() -> None:
    told = {row[5] for row in rows("The life of a job") if re.match(r"\d \w+$", row[0])} - {"none"}
    events = {entry["name"] for entry in artifacts.load_artifact("JobRegistry").abi if entry["type"] == "event"}
    assert told == {name for name in events if name.startswith("Job")}


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


@pytest.mark.parametrize("at", range(3))
def test_exchange_with_a_node_is_a_call_and_its_answer(at: int, order: Case) -> None:
    request, answer = examples("Three JSON-RPC exchanges", "jsonl")[2 * at : 2 * at + 2]
    registry, function, words, expected = (
        (
            "ProviderRegistry",
            "provider",
            [abi.uint(2)],
            {"boxKey": bytes.fromhex(order["box_key"][2:]), "listed": True},
        ),
        ("JobRegistry", "fees", [], {"feeBps": int(order["fee_bps"]), "gasFee": int(order["gas_fee"])}),
        ("JobRegistry", "job", [bytes.fromhex(order["job_id"][2:])], {"exists": True, "state": 1, "providerId": 2}),
    )[at]
    artifact = artifacts.load_artifact(registry)
    [call, block] = request["params"]
    assert (request["method"], block) == ("eth_call", "latest")
    assert call["data"] == f"0x{call_data(artifact, function, *words).hex()}"
    read = returned_values(artifact, function, bytes.fromhex(answer["result"][2:]))
    assert {name: read[name] for name in expected} == expected


def test_contract_errors_name_the_contracts_limits() -> None:
    causes = {name: error.cause for error in CONTRACT_ERRORS for name in error.names}
    assert f"longer than {MAX_EVIDENCE_BYTES:,} bytes" in causes["EvidenceTooLong"]
    assert f"more than {constant('AskRegistry', 'MOST_QUOTES')} quotes;" in causes["TooManyQuotes"]
    assert f"longer than {constant('JobRegistry', 'LONGEST_CID')} bytes" in causes["InvalidCid"]


def test_signed_types_are_those_of_the_vectors() -> None:
    told = re.findall(r"^(\w+\(.*\))$", SECTIONS["Typed data"], re.MULTILINE)
    assert set(told) == {case["type"] for case in cases("eip712.json")}


# --- examples ---


def test_body_with_one_rate_is_an_order_that_lacks_the_other() -> None:
    probe, _ = examples("A buyer in seven calls", "json")
    assert isinstance(read_submission({**probe, "rate_in": None, "rate_out": None}), MarketProbe)
    for sent, missing in (("rate_in", "rate_out"), ("rate_out", "rate_in")):
        with pytest.raises(Refused, match=missing):
            read_submission({**probe, sent: "1"})


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


@pytest.mark.parametrize(
    ("at", "api", "endpoint", "counted"),
    [
        (0, "responses", "/v1/responses", (11, 64, 5)),
        (2, "chat", "/v1/chat/completions", (20, 32, 2)),
        (4, "embeddings", "/v1/embeddings", (7, 0, 0)),
        (6, "images", "/v1/images/generations", (0, 262144, 262144)),
    ],
)
def test_outputs_match_the_providers_own(at: int, api: str, endpoint: str, counted: tuple[int, int, int]) -> None:
    texts = re.findall(r"^\{.*\}$", SECTIONS["Inputs and outputs"], re.MULTILINE)
    asked, body = json.loads(texts[at]), ResultBody.parse(texts[at + 1].encode())
    assert [row[0] for row in rows("Inputs and outputs")].count(f"`{endpoint}`") == 1
    modality = modality_of(endpoint, asked)
    units = units_of(modality, asked)
    output = body.output
    assert isinstance(output, dict)
    model = output.get("model", "demo/image-small")
    work = ModelWork(body.job_id, model, modality, asked, units.units_in, units.units_out, 1.0)
    made = read_work_output(api, work, {**output, **({"model": "/models/its-own"} if "model" in output else {})}, 0)
    assert (made.output, made.usage) == (output, body.usage)
    assert (units.units_in, units.units_out, made.completion_tok) == counted
    told = words(SECTIONS["Inputs and outputs"])
    assert all(str(number) in told for number in counted)


def test_low_order_points_are_those_of_the_vectors() -> None:
    low = {case["public"] for case in cases("sealed_box_keys.json") if case.get("refused") == "low_order"}
    told = set()
    for line in re.findall(
        r"^([0-9a-f]{2}(?: .*?)?|[0-9a-f]{64})(?:  .*)?$", SECTIONS["Keys and sealed boxes"], re.MULTILINE
    ):
        parts = [re.fullmatch(r"([0-9a-f]+)(?: \((\d+)\))?", part) for part in line.strip().split(" ‖ ")]
        told.add("".join(part[1] * int(part[2] or 1) for part in parts if part is not None))
    assert len(told) == 7
    assert told | {f"{point[:-2]}{int(point[-2:], 16) | 0x80:02x}" for point in told} == low


def test_offsets_in_a_container_are_those_of_the_readers(order: Case) -> None:
    lines = re.findall(r"^(?:offset)? +(\d+)  (\S.*?)  ", SECTIONS["Container v1"], re.MULTILINE)
    assert [at for at, _ in lines] == ["0", "1", "81", "105"]
    container, plaintext = base64.b64decode(order["container"]), order["envelope"].encode()
    assert (container[:1], container[1:81].hex()) == (b"\1", order["seed_wrap"][2:])
    assert container[81:105].hex() == order["header"][2:]
    assert len(container) == 105 + len(plaintext) + 17 * max(1, -(-len(plaintext) // 65_536))


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


def test_wrapped_line_is_refused_as_the_page_says(checks: LineChecks) -> None:
    line = examples("Batches", "jsonl")[0]
    wrapped = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": line}).encode()
    named = json.dumps({**line, "custom_id": "a"}).encode()
    assert f"In a line above {MAX_CHECKED_LINE_BYTES:,} bytes it is refused as `invalid_line`" in words(PAGE)
    for text, message in ((wrapped, WRAPPED_LINE_MESSAGE), (named, UNSEALED_CUSTOM_ID_MESSAGE)):
        with pytest.raises(Refused, match=re.escape(f"line 1: {message}")) as at_upload:
            LineInspection().update(text + b"\n")
        assert at_upload.value.param == "file"
        [refused] = checks.check_lines([InputLine(3, text)])
        assert isinstance(refused, LineRecord)
        assert (refused.code, refused.message) == ("invalid_line", message)


def test_error_line_is_that_of_a_line_without_its_model(checks: LineChecks) -> None:
    line = examples("Batches", "jsonl")[0]
    del line["model_id"]
    [refused] = checks.check_lines([InputLine(3, json.dumps(line).encode())])
    assert isinstance(refused, LineRecord)
    error = examples("Batches", "jsonl")[3]["error"]
    assert (refused.code, refused.message) == (error["code"], error["message"])


def test_error_line_of_a_line_that_could_be_read_names_its_id(checks: LineChecks, order: Case) -> None:
    line = {**examples("Batches", "jsonl")[0], "amount": "2015"}
    [refused] = checks.check_lines([InputLine(3, json.dumps(line).encode())])
    assert isinstance(refused, LineRecord)
    assert refused.code == "insufficient_payment"
    assert refused.job_id == bytes.fromhex(order["job_id"][2:])
    unread = {
        "invalid_json": json.dumps(line).encode()[:-1],
        "invalid_line": json.dumps({**line, "units_in": "many"}).encode(),
        "endpoint_mismatch": json.dumps({**line, "url": "/v1/embeddings"}).encode(),
    }
    for code, text in unread.items():
        [refused] = checks.check_lines([InputLine(3, text)])
        assert isinstance(refused, LineRecord)
        assert (refused.code, refused.job_id) == (code, None)
    [refused] = checks.check_lines([InputLine(3, json.dumps({**line, "job_id": "0x" + "00" * 32}).encode())])
    assert isinstance(refused, LineRecord)
    assert (refused.code, refused.job_id) == ("invalid_line", bytes(32))


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


def test_every_status_of_a_batch_is_named() -> None:
    assert set(get_args(BatchStatus)) - {"cancelling"} <= named(SECTIONS["Batches"])


# --- refusals ---


REFUSED_UNITS = {
    "a tier that is none": "another tier",
    "a ratio that is none": "another ratio",
    "a side of zero": "a side of zero is refused",
    "no images": "not a whole number, or below 1",
    "a cap below zero": "or below zero",
    "a duration in words": "a duration in words",
    "more than an order holds": "above 2^32 − 1",
    "an asset without its width": "missing, not whole or below 1",
    "an asset without content": "missing or empty",
    "an asset of too many pixels": "more than a limit",
    "a clip that is too long": "more than a limit",
    "ten stills in a list": "more than a limit",
    "four clips in a list": "more than a limit",
    "thirteen stills and clips": "more than a limit",
}


def test_every_refusal_of_units_is_told() -> None:
    refused = {case["name"] for case in cases("units.json") if "refused" in case}
    assert refused == REFUSED_UNITS.keys()
    assert [name for name, told in REFUSED_UNITS.items() if told not in words(SECTIONS["Units"])] == []
