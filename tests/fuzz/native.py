"""The C code under AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tests.fuzz.native --seconds S`.

Compiles `common/native` with both, in the form of this processor and in the plain one, and answers in a process that
has the sanitizer's library loaded first: the vectors of typed data, then random questions and transactions. Each answer
is held against Python's. Every allocation of Python is malloc's there, and every answer has a buffer of its
exact size, so that a byte read or written beside one ends the process with a report.
"""

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from common.domains import DIGEST_PREFIX
from common.keccak import keccak256
from common.native import build, library
from common.secp256k1 import Wallet, signed, signers_by_loop
from common.transactions import sign_in_steps

ROOT: Final = Path(__file__).parents[2]
FORMS: Final = {"as for here": (), "one by one": ("-DONE_BY_ONE",)}
FLAGS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
_ORDER: Final = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
_EDGES: Final = (0, 1, _ORDER // 2, _ORDER // 2 + 1, _ORDER - 1, _ORDER, 2**256 - 1)
_LENGTHS: Final = (0, 1, 55, 56, 135, 136, 137, 255, 256, 271, 272, 273, 4096, 65_535, 65_536)


def _write_vectors(path: Path) -> None:
    """Questions and signers, for a process that cannot import what reads vectors: parts of it load libraries in a way
    that the sanitizer refuses."""
    from tests.unit.common.messages.test_signed_types import SIGNED, read  # noqa: PLC0415 - see above
    from tests.vectors.vector_file import cases  # noqa: PLC0415 - see above

    types = {kind.__name__: kind for kind in SIGNED}
    vectors = []
    for case in cases("eip712.json"):
        separator, signature = (bytes.fromhex(case[name][2:]) for name in ("separator", "signature"))
        struct = read(types[case["primary_type"]], case["message"]).packed()
        vectors.append([signed(DIGEST_PREFIX + separator, struct, signature).hex(), case["signer"][2:].lower()])
    path.write_text(json.dumps(vectors))


def _vectors(compiled: library.Library, path: Path) -> int:
    asked, signers = zip(
        *([bytes.fromhex(text) for text in each] for each in json.loads(path.read_text())), strict=True
    )
    assert compiled.signers(asked) == list(signers)
    assert [compiled.signers([one])[0] for one in asked] == list(signers)
    return len(asked)


def _question(chance: random.Random) -> bytes:
    prefix, struct = chance.randbytes(34), chance.randbytes(chance.choice((*_LENGTHS[:-3], chance.randrange(600))))
    if chance.random() < 0.6:
        wallet = Wallet(chance.randrange(1, _ORDER).to_bytes(32, "big"))
        signature = bytearray(wallet.sign(keccak256(prefix + keccak256(struct))))
        if chance.random() < 0.3:
            signature[chance.randrange(65)] ^= 1 << chance.randrange(8)
        return signed(prefix, struct, bytes(signature))
    r, s = (chance.choice((*_EDGES, chance.getrandbits(256))).to_bytes(32, "big") for _ in "rs")
    return signed(prefix, struct, r + s + bytes([chance.choice((0, 1, 26, 27, 28, 29, 255))]))


def _loop(compiled: library.Library, seconds: float, seed: int) -> int:
    chance, ends, rounds = random.Random(seed), time.monotonic() + seconds, 0  # noqa: S311 - it guards nothing
    while time.monotonic() < ends:
        asked = [_question(chance) for _ in range(chance.randrange(10))]
        assert compiled.signers(asked) == signers_by_loop(asked), [one.hex() for one in asked]
        secret = chance.randrange(1, _ORDER).to_bytes(32, "big")
        fields = chance.randbytes(chance.choice((*_LENGTHS, chance.randrange(600))))
        assert compiled.sign_transaction(secret, fields) == sign_in_steps(Wallet(secret), fields), fields.hex()
        for no_key in (bytes(32), _ORDER.to_bytes(32, "big")):
            try:
                compiled.sign_transaction(no_key, fields)
            except ValueError:
                continue
            raise AssertionError("a secret that is no key has signed")
        rounds += 1
    return rounds


def _inside(path: Path, seconds: float, seed: int) -> None:
    compiled = library.Library(path)
    library._SHORT = -1  # no answer goes into the room that is kept, which is larger than most
    vectors = _vectors(compiled, path.with_name("vectors.json"))
    print(f"native: {vectors} vectors and {_loop(compiled, seconds, seed)} rounds hold", flush=True)


def _sanitizer() -> str | None:
    """The library that has to be loaded before all others; None where the compiler brings none."""
    compiler = build.compiler()
    if compiler is None:
        return None
    asked = [compiler, "-print-file-name=libasan.so"]
    found = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    return str(found.resolve()) if found.is_absolute() else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.native", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of random questions, in each of the two forms")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="one is drawn where none is given")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        _inside(chosen.inside, chosen.seconds, chosen.seed)
        return 0
    preload = _sanitizer()
    if preload is None:
        print("native: gcc with libasan must be there (Debian: gcc)", file=sys.stderr)
        return 1
    folder = ROOT / "build" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    _write_vectors(folder / "vectors.json")
    for form, flags in FORMS.items():
        path = folder / f"{form.replace(' ', '-')}.so"
        if wrong := build.compile_library(path, *FLAGS, *flags):
            print(f"native: {wrong}", file=sys.stderr)
            return 1
        environment = {
            **os.environ, "LD_PRELOAD": preload, "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1",
        }  # fmt: skip # the interpreter itself frees little at its end: leaks are not looked for
        options = ["--seconds", str(chosen.seconds), "--seed", str(chosen.seed)]
        again = [sys.executable, "-m", "tests.fuzz.native", "--inside", str(path), *options]
        print(f"native: {form}, seed {chosen.seed}", flush=True)
        if code := subprocess.run(again, env=environment, cwd=ROOT, check=False).returncode:
            print(f"native: {form} failed with {code}; again with --seed {chosen.seed}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
