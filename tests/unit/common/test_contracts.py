import json
import re
import subprocess
import tomllib
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import eth_abi
import pytest
from eth_utils.abi import abi_to_signature, event_abi_to_log_topic, function_abi_to_4byte_selector
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from common import abi, artifacts
from common.refusal import Refused
from tests.support.programs.found import node

# By ABI type: values, their encoding, and the decoder of one head word.
ASK = "(uint32,uint32,uint128,uint128)"
u32, u128 = st.integers(0, 2**32 - 1), st.integers(0, 2**128 - 1)


def ask_words(ask):
    return abi.static_struct(abi.uint(field) for field in ask)


def asks_at(data, word):
    return tuple(
        (abi.uint_at(row, 0, 32), abi.uint_at(row, 1, 32), abi.uint_at(row, 2, 128), abi.uint_at(row, 3, 128))
        for row in abi.rows_at(data, word, 4)
    )


KINDS = {
    "uint256": (st.integers(0, 2**256 - 1), abi.uint, abi.uint_at),
    "uint64": (st.integers(0, 2**64 - 1), abi.uint, lambda data, word: abi.uint_at(data, word, 64)),
    "bool": (st.booleans(), abi.boolean, abi.boolean_at),
    "bytes32": (st.binary(min_size=32, max_size=32), abi.bytes32, abi.bytes32_at),
    "address": (
        st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex()),
        lambda shown: abi.address(bytes.fromhex(shown[2:])),
        lambda data, word: "0x" + abi.address_at(data, word).hex(),
    ),
    "bytes": (st.binary(max_size=100), abi.dynamic_bytes, abi.bytes_at),
    "string": (st.text(st.characters(exclude_categories=["Cs"]), max_size=40), abi.dynamic_string, abi.text_at),
    f"{ASK}[]": (
        st.lists(st.tuples(u32, u32, u128, u128), max_size=4).map(tuple),
        lambda asks: abi.array([ask_words(ask) for ask in asks]),
        asks_at,
    ),
}
arguments = st.lists(
    st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind][0])), max_size=8
)


@given(arguments)
def test_arguments_are_encoded_as_eth_abi_does(arguments):
    expected = eth_abi.encode([kind for kind, _ in arguments], [value for _, value in arguments])
    assert abi.encode(*[KINDS[kind][1](value) for kind, value in arguments]) == expected


@given(arguments)
def test_eth_abi_encodings_are_decoded(arguments):
    data = eth_abi.encode([kind for kind, _ in arguments], [value for _, value in arguments])
    decoded = [KINDS[kind][2](data, word) for word, (kind, _) in enumerate(arguments)]
    assert decoded == [value for _, value in arguments]


@given(st.lists(st.binary(max_size=100), max_size=5), u32)
def test_an_array_of_byte_strings_is_encoded_as_eth_abi_does(items, after):
    expected = eth_abi.encode(["bytes[]", "uint32"], [items, after])
    assert abi.encode(abi.array_of_dynamic([abi.dynamic_bytes(item) for item in items]), abi.uint(after)) == expected


@given(st.tuples(u32, u32, u128, u128), st.binary(max_size=40))
def test_static_struct_is_encoded_in_the_head(ask, signature):
    expected = eth_abi.encode([ASK, "bytes"], [ask, signature])
    assert abi.encode(ask_words(ask), abi.dynamic_bytes(signature)) == expected


@pytest.mark.parametrize(
    ("encoder", "value"),
    [
        (abi.uint, -1),
        (abi.uint, 2**256),
        (abi.bytes32, bytes(31)),
        (abi.bytes32, bytes(33)),
        (abi.address, bytes(19)),
        (abi.address, bytes(32)),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_not_encoded(encoder, value):
    with pytest.raises((ValueError, OverflowError)):
        encoder(value)


def words(*values):
    return b"".join(value.to_bytes(32, "big") if isinstance(value, int) else value for value in values)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        pytest.param(abi.uint_at, b"", id="no word"),
        pytest.param(abi.bytes32_at, bytes(31), id="part of a word"),
        pytest.param(lambda data, word: abi.uint_at(data, word, 32), words(2**32), id="uint wider than its type"),
        pytest.param(abi.boolean_at, words(2), id="bool that is 2"),
        pytest.param(abi.address_at, words(2**160), id="address with a dirty upper byte"),
        pytest.param(abi.bytes_at, words(64, 0), id="offset past the data"),
        pytest.param(abi.bytes_at, words(2**256 - 32, 0), id="offset beyond all memory"),
        pytest.param(abi.bytes_at, words(33, 0, 0), id="offset between words"),
        pytest.param(abi.bytes_at, words(0), id="offset of itself"),
        pytest.param(lambda data, word: abi.bytes_at(data, word, 2), words(32, 0), id="offset into the head"),
        pytest.param(lambda data, word: abi.text_at(data, word, 2), words(32, 0), id="string in the head"),
        pytest.param(lambda data, word: abi.rows_at(data, word, 1, 2), words(32, 0), id="rows in the head"),
        pytest.param(abi.bytes_at, words(32, 33, 0), id="length past the data"),
        pytest.param(abi.bytes_at, words(32, 2**256 - 1, 0), id="length beyond all memory"),
        pytest.param(abi.bytes_at, words(32, 1) + b"\x01", id="padding left off"),
        pytest.param(abi.bytes_at, words(32, 1, b"\x01" + bytes(30) + b"\x01"), id="padding that is not zero"),
        pytest.param(abi.text_at, words(32, 1, b"\xff" + bytes(31)), id="string that is not UTF-8"),
        pytest.param(lambda data, word: abi.rows_at(data, word, 4), words(32, 1, 0, 0, 0), id="rows past the data"),
        pytest.param(lambda data, word: abi.rows_at(data, word, 4), words(32, 2**255, 0), id="rows beyond all memory"),
    ],
)
def test_data_that_no_compiler_writes_is_refused(decode, data):
    with pytest.raises(Refused):
        decode(data, 0)


def test_large_offset_is_resolved():
    word = 31
    with pytest.raises(Refused, match="into the head"):
        abi.bytes_at(words(*[0] * word, 32 * word) + bytes(32 * word), word)


@given(st.binary(max_size=200), st.sampled_from(sorted(KINDS)), st.integers(0, 4))
def test_arbitrary_bytes_are_decoded_or_refused(data, kind, word):
    with suppress(Refused):
        KINDS[kind][2](data, word)


CONTRACTS_DIR = Path(artifacts.__file__).parent / "contracts"


def test_artifacts_match_the_sources_in_the_tree() -> None:
    """Quick check for sources that changed after compiling. `make test-long` runs the compiler itself."""
    for path, source in artifacts.compiler_sources()["sources"].items():
        folder = CONTRACTS_DIR / "node_modules" if path.startswith("@") else CONTRACTS_DIR
        assert (folder / path).read_text(encoding="utf-8") == source, f"{path}: run `make contracts`"
    profile = tomllib.loads((CONTRACTS_DIR / "foundry.toml").read_text(encoding="utf-8"))["profile"]["default"]
    settings = artifacts.compiler_sources()["settings"]
    assert (profile["optimizer_runs"], profile["via_ir"], profile["evm_version"]) == (
        settings["optimizer"]["runs"],
        settings["viaIR"],
        settings["evmVersion"],
    )
    locked = json.loads((CONTRACTS_DIR / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert artifacts.compiler_sources()["compiler"].startswith(f"v{locked['node_modules/solc']['version']}+")


@pytest.mark.long
@pytest.mark.timeout(600)  # compiling takes half a minute, longer on a busy machine
def test_committed_artifacts_match_the_compiler(tmp_path: Path) -> None:
    compiler = node()
    assert compiler is not None, "node is missing: run `make setup`"
    subprocess.run([compiler, CONTRACTS_DIR / "build.mjs", tmp_path], check=True)
    paths = {f"artifacts/{path.name}" for path in (CONTRACTS_DIR / "artifacts").iterdir()} | {"sources.json"}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == paths
    assert paths >= {f"artifacts/{name}.json" for name in artifacts.CONTRACTS}
    for path in sorted(paths):
        rebuilt, committed = (tmp_path / path).read_bytes(), (CONTRACTS_DIR / path).read_bytes()
        assert rebuilt == committed, f"{path} differs from its sources: run `make contracts`"


@pytest.mark.parametrize("name", artifacts.CONTRACTS)
def test_topics_selectors_and_errors_match_an_oracle(name: str) -> None:
    artifact = artifacts.load_artifact(name)
    checked = 0
    times = Counter(entry["name"] for entry in artifact.abi if entry["type"] == "function")
    for entry in cast("tuple[Any, ...]", artifact.abi):  # the oracle's types differ by kind of entry
        match entry["type"]:
            case "event":
                assert artifacts.event_topic(artifact, entry["name"]) == event_abi_to_log_topic(entry)
            case "function" if times[entry["name"]] > 1:
                with pytest.raises(ValueError, match="several functions"):
                    artifacts.selector(artifact, entry["name"])
            case "function":
                assert artifacts.selector(artifact, entry["name"]) == function_abi_to_4byte_selector(entry)
            case "error":
                assert artifact.errors[keccak(text=abi_to_signature(entry))[:4]] == entry["name"]
            case _:
                continue  # the constructor has no name
        checked += 1
    assert checked > (1 if name == "IssuedTokenProxy" else 20)
    assert len(artifact.errors) == sum(entry["type"] == "error" for entry in artifact.abi)


def test_bytecode_fits_the_chains_limit_on_deployed_code() -> None:
    for name in artifacts.CONTRACTS:
        assert 0 < len(artifacts.load_artifact(name).bytecode) <= 2 * 24_576


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError):
        artifacts.load_artifact("../JobRegistry")
    with pytest.raises(KeyError, match="JobRegistry has no event Posted"):
        artifacts.event_topic(artifacts.load_artifact("JobRegistry"), "Posted")
    with pytest.raises(KeyError, match="JobRegistry has no function JobPosted"):
        artifacts.selector(artifacts.load_artifact("JobRegistry"), "JobPosted")


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("DuplicateJob()", "DuplicateJob"),
        ("StaleSnapshot()", "StaleSnapshot"),
        ("JobsActive()", "JobsActive"),
        ("EnforcedPause()", "EnforcedPause"),
        ("OwnableUnauthorizedAccount(address)", "OwnableUnauthorizedAccount"),
        ("AccountBlacklisted(address)", "AccountBlacklisted"),
        ("Panic(uint256)", "Panic"),
        ("Error(string)", "Error"),
    ],
)
def test_revert_data_is_named_by_its_first_four_bytes(signature: str, name: str) -> None:
    assert artifacts.decode_error_name(keccak(text=signature)[:4] + bytes(32)) == name


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xde\xad\xbe\xef"])
def test_revert_data_of_no_known_error_has_no_name(data: bytes) -> None:
    assert artifacts.decode_error_name(data) is None


CONTRACTS: Final = Path(__file__).parents[3] / "common" / "contracts"
DOCS: Final = Path(__file__).parents[3] / "docs"
PAGE: Final = "\n".join((DOCS / name).read_text() for name in ("protocol/contracts.md", "contributors/contracts.md"))
# `relay` attaches this call to the post before it. Alone the call changes nothing, so its ABI says "pure".
ATTACHED: Final = "claimPosted"
REGISTRIES: Final = {"jobs": "JobRegistry", "providers": "ProviderRegistry", "asks": "AskRegistry"}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def table(title: str, columns: int) -> list[list[str]]:
    """Return the rows of the section's first table with this many columns, without the header."""
    lines = [line for line in section(title).splitlines() if line.startswith("|") and line.count("|") == columns + 1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_function_and_its_sender_is_listed() -> None:
    told: set[tuple[str, str]] = set()
    admins: set[tuple[str, str]] = set()
    for functions, where, sender in table("Who may send what", 3):
        for registry in REGISTRIES.values() if where == "each" else [REGISTRIES[where]]:
            named = {(registry, name) for name in re.findall(r"`(\w+)`", functions)}
            assert not named & told
            told |= named
            admins |= named if sender == "the admin" else set()
    written = {
        (registry, entry["name"])
        for registry in REGISTRIES.values()
        for entry in artifacts.load_artifact(registry).abi
        if entry["type"] == "function"
        and (entry["stateMutability"] not in ("view", "pure") or entry["name"] == ATTACHED)
    }
    assert told == written
    inherited = {"transferOwnership", "renounceOwnership"}
    assert {name for _, name in admins} == inherited | only_owner()


def only_owner() -> set[str]:
    sources = " ".join(path.read_text() for path in (CONTRACTS / "src").glob("*.sol") if "Token" not in path.name)
    return set(re.findall(r"function (\w+)\([^{;]*?\)[^{;]*?\bonlyOwner\b", sources))


def test_gas_is_that_of_the_snapshots() -> None:
    head = re.findall(r"\w+", next(line for line in section("Gas").splitlines() if line.startswith("| |")))
    files = {path.stem.replace("_", " "): json.loads(path.read_text()) for path in CONTRACTS.glob("snapshots/*.json")}
    rows = {row[0]: row[1:] for row in table("Gas", len(head) + 1)}
    expected = {
        name: [f"{round(int(gas[what]) / 1000)} k" if what in gas else "" for what in head]
        for name, gas in files.items()
    }
    assert rows == expected


def test_proofs_are_those_of_the_page() -> None:
    proofs = re.findall(
        r"function check_(\w+)", " ".join(path.read_text() for path in CONTRACTS.glob("symbolic/*.t.sol"))
    )
    assert f"runs the {len(proofs)} proofs of" in section("Proofs")
    assert len(table("Proofs", 2)) == sum("splits" in name for name in proofs)
    [refused] = [row for row in table("Proofs", 3) if row[0] == "other terms are refused"]
    ops = re.findall(r"\w+", refused[1].split(" with any values", 1)[0].replace(" and ", " "))
    assert set(ops) == {name.removesuffix("_of_other_terms_is_refused") for name in proofs if "other_terms" in name}


def test_every_external_function_has_natspec() -> None:
    missing = []
    for path in (CONTRACTS / "src" / "interfaces").glob("*.sol"):
        lines = path.read_text().splitlines()
        for before, line in pairwise(lines):
            if line.startswith("    function ") and not before.strip().startswith("///"):
                missing.append(f"{path.name}: {line.strip()}")
    assert missing == []
