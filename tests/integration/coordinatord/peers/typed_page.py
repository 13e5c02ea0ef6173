"""Typed data built only from docs/protocol/formats.md, in the form for wallets."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

from tests.integration.coordinatord.peers.conftest import ROOT

Typed = dict[str, Any]
Fields = list[dict[str, str]]

_PAGE: Final = (ROOT / "docs/protocol/formats.md").read_text("utf-8").split("\n## Typed data\n")[1].split("\n## ")[0]
_STRUCT: Final = re.compile(r"(\w+)\(([^)]*)\)")


def _types() -> dict[str, dict[str, Fields]]:
    """Return the structs of each signed type, as on the page."""
    found = {}
    for line in re.findall(r"^[A-Z]\w+\(.*\)$", _PAGE, re.MULTILINE):
        structs = {
            name: [{"type": kind, "name": field} for kind, field in (one.split(" ") for one in fields.split(","))]
            for name, fields in _STRUCT.findall(line)
        }
        found[next(iter(structs))] = structs
    return found


def _domain_names() -> dict[str, tuple[str | None, str, str | None]]:
    """Return the domain's name, version and contract of each signed type, from the page's table."""
    found: dict[str, tuple[str | None, str, str | None]] = {}
    for left, contract, types in re.findall(
        r"^\| (`SVC .*?|the payment token's own) \| (.*?) \| (.*?) \|$", _PAGE, re.M
    ):
        named = re.fullmatch(r"`(.*)` \((\d+)\)", left)
        name, version = (named[1], named[2]) if named else (None, "")
        for kind in types.split(", "):
            found[kind] = (name, version, None if contract == "none" else contract)
    return found


TYPES: Final = _types()
_DOMAINS: Final = _domain_names()
_CONTRACTS: Final = {
    "job registry": "job_registry",
    "provider registry": "provider_registry",
    "ask registry": "ask_registry",
    "payment token": "paytoken",
}


@attrs.frozen
class Deployment:
    """`chain` is the response of GET /evm/chain."""

    chain: dict[str, Any]

    def typed(self, kind: str, message: dict[str, Any]) -> Typed:
        name, version, contract = _DOMAINS[kind]
        domain: dict[str, Any] = {"chainId": self.chain["chain_id"]}
        domain |= self.chain["token_domain"] if name is None else {"name": name, "version": version}
        if contract is not None:
            domain["verifyingContract"] = self.chain["contracts"][_CONTRACTS[contract]]
        return {"domain": domain, "types": TYPES[kind], "primaryType": kind, "message": message}


@attrs.frozen
class Library:
    """One of the libraries of tests/peers/node."""

    name: str
    process: "subprocess.Popen[str]"

    def ask(self, act: str, **asked: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"by": self.name, "do": act, **asked}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def sign(self, key: str, typed: Typed) -> str:
        answer = self.ask("sign", key=key, typed=typed)
        assert "said" in answer, answer
        return str(answer["said"])

    def accepts(self, address: str, signature: str, typed: Typed) -> bool:
        """Verify a signature. Both libraries throw on malformed ones, which counts as False."""
        return self.ask("verify", address=address, signature=signature, typed=typed).get("said") is True


@contextmanager
def library(name: str) -> Iterator[Library]:
    command = (shutil.which("node") or "node", str(ROOT / "tests" / "peers" / "node" / "sign.mjs"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Library(name, process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
