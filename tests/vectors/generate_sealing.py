"""Make the vectors of keys, containers and results: `python -m tests.vectors.generate_sealing`.

All random inputs of sealing are fixed, so the files are reproducible, and a test checks this. Sealed boxes and streams
are built from libsodium's primitives, not by the code under test.
"""

import hashlib

from nacl import bindings

from common import key_derivation
from common.box import SecretKey
from common.keccak import keccak256
from tests.vectors.vector_file import FOLDER, PATTERN, Case, pattern, text_of

CHAIN_ID = 31337
REGISTRY = bytes.fromhex("5fbdb2315678afecb367f032d93f642f64180aa3")
OWNER = bytes.fromhex("70997970c51812dc3a010c7d01b50e0d17dc79c8")
STRANGER = bytes.fromhex("3c44cdddb6a900fa2b585dd299e03d12fa4293bc")
MESSAGE, PUSH, REKEY, FINAL = 0, 1, 2, 3

# u-coordinates of the points of order 1, 2, 4 and 8, as RFC 7748 numbers
P = 2**255 - 19
LOW_ORDER = {
    "zero": 0,
    "one": 1,
    "order eight, first": 0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    "order eight, second": 0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    "p - 1": P - 1,
    "p, zero not reduced": P,
    "p + 1, one not reduced": P + 1,
}


def fixed(label: str, length: int = 32) -> bytes:
    return hashlib.shake_256(label.encode()).digest(length)


RECIPIENT = SecretKey(fixed("recipient"))
STRANGERS_KEY = SecretKey(fixed("another recipient"))


def sealed_box(plaintext: bytes, recipient: SecretKey, label: str) -> bytes:
    return sealed_box_from(SecretKey(fixed("ephemeral " + label)), plaintext, recipient.public.raw)


def sealed_box_from(ephemeral: SecretKey, plaintext: bytes, recipient: bytes) -> bytes:
    """Return a sealed box with a given ephemeral key."""
    nonce = hashlib.blake2b(ephemeral.public.raw + recipient, digest_size=24).digest()
    return ephemeral.public.raw + bindings.crypto_box(plaintext, nonce, recipient, ephemeral.raw)


def stream(key: bytes, header: bytes, frames: list[tuple[bytes, int]]) -> bytes:
    """Return a secretstream with a given header. libsodium's two init functions differ only in who chooses the
    header."""
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, header, key)
    push = bindings.crypto_secretstream_xchacha20poly1305_push
    return header + b"".join(push(state, plaintext, None, tag) for plaintext, tag in frames)


def framed(plaintext: bytes) -> list[tuple[bytes, int]]:
    cut = [plaintext[at : at + 65_536] for at in range(0, len(plaintext), 65_536)] or [b""]
    return [(frame, MESSAGE) for frame in cut[:-1]] + [(cut[-1], FINAL)]


def sealed(kind: str, label: str, bound: bytes, frames: list[tuple[bytes, int]]) -> Case:
    """Return the fields of every case of a container or a result."""
    derive = key_derivation.data_key if kind == "container" else key_derivation.result_data_key
    seed = fixed("seed " + label)
    wrap = sealed_box(seed, RECIPIENT, label)
    dek = derive(seed, CHAIN_ID, REGISTRY, bound)
    whole = b"\x01" + wrap + stream(dek, fixed("header " + label, 24), frames)
    case: Case = {
        "name": label,
        "secret": RECIPIENT.raw.hex(),
        "chain_id": CHAIN_ID,
        "job_registry": REGISTRY.hex(),
        ("owner" if kind == "container" else "job_id"): bound.hex(),
        "seed": seed.hex(),
        "dek": dek.hex(),
        "sealed": whole.hex(),
    }
    if kind == "container":
        case |= commitment_of(whole)
    return case


def commitment_of(whole: bytes) -> Case:
    ct_hash = keccak256(whole[81:])
    return {
        "seed_wrap": whole[1:81].hex(),
        "ct_hash": ct_hash.hex(),
        "c": keccak256(whole[:81] + ct_hash).hex(),
    }


def large(case: Case, length: int) -> Case:
    """Return a case without its bytes. The reader rebuilds them from the parts, and checks the digest."""
    whole = bytes.fromhex(case.pop("sealed"))
    return case | {
        "plaintext_length": length,
        "seed_wrap": whole[1:81].hex(),
        "header": whole[81:105].hex(),
        "sealed_sha256": hashlib.sha256(whole).hexdigest(),
    }


def refusals(kind: str, bound: bytes) -> list[Case]:
    """Return the cases that must not open, for reasons that containers and results share."""

    def case(label: str, failure: str, frames: list[tuple[bytes, int]] | None = None, **other: str) -> Case:
        made = sealed(kind, label, bound, framed(b"a payload") if frames is None else frames)
        return made | other | {"refused": failure}

    def changed(label: str, failure: str, at: int) -> Case:
        made = case(label, failure)
        whole = bytearray.fromhex(made["sealed"])
        whole[at] ^= 1
        return made | {"sealed": bytes(whole).hex()} | recommitted(whole)

    def cut(label: str, failure: str, length: int) -> Case:
        made = case(label, failure)
        whole = bytes.fromhex(made["sealed"])[:length]
        return made | {"sealed": whole.hex()} | (recommitted(whole) if length > 81 else {})

    def recommitted(whole: bytes) -> Case:
        return commitment_of(bytes(whole)) if kind == "container" else {}

    extra = case("bytes follow the last frame", "undecryptable")
    whole = bytes.fromhex(extra["sealed"]) + bytes(40)
    extra |= {"sealed": whole.hex()} | recommitted(whole)
    return [
        cut("nothing at all", "too_short", 0),
        cut("a head and no stream", "too_short", 81),
        cut("one byte fewer than the shortest", "too_short", 121),
        changed("version 0", "bad_version", 0),
        changed("a bit of the ephemeral key flipped", "unseal_failed", 1),
        changed("a bit of the wrapped seed flipped", "unseal_failed", 60),
        changed("a bit of the stream's header flipped", "undecryptable", 81),
        changed("a bit of the first frame's tag flipped", "undecryptable", 105),
        changed("a bit of the last frame's MAC flipped", "undecryptable", -1),
        cut("the last byte cut off", "undecryptable", 130),
        case("a stream that ends without its last frame", "undecryptable", [(b"a payload", MESSAGE)]),
        case("an inner frame that is not full", "undecryptable", [(b"a ", MESSAGE), (b"payload", FINAL)]),
        case("a frame tagged PUSH", "undecryptable", [(b"a payload", PUSH)]),
        case("a frame tagged REKEY", "undecryptable", [(b"a payload", REKEY)]),
        extra,
        case("sealed to another key", "unseal_failed", secret=STRANGERS_KEY.raw.hex()),
        case("another deployment's registry", "undecryptable", job_registry=fixed("registry", 20).hex()),
    ]


def container_cases() -> list[Case]:
    made = []
    for label, plaintext in (("an empty payload", b""), ("a short payload", b'{"v":1}')):
        case = sealed("container", label, OWNER, framed(plaintext))
        made.append(case | {"plaintext": plaintext.hex()})
    for label, length in (("exactly one frame", 65_536), ("three frames", 131_073)):
        case = sealed("container", label, OWNER, framed(pattern(length)))
        made.append(large(case, length))
    stolen = sealed("container", "posted by a stranger as his own", OWNER, framed(b"a payload"))
    made.append(stolen | {"owner": STRANGER.hex(), "refused": "undecryptable"})
    mismatch = sealed("container", "another container's commitment", OWNER, framed(b"a payload"))
    made.append(mismatch | {"c": fixed("c").hex(), "refused": "commitment_mismatch"})
    length = 81 + 24 + 65_553 + 16  # a full frame, then fewer bytes than any frame has
    unreal = {"name": "a length that no container has", "sealed_length": length}
    made.append(unreal | commitment_of(b"\x01" + pattern(length - 1)) | {"refused": "bad_container"})
    return made + refusals("container", OWNER)


def result_cases() -> list[Case]:
    job = keccak256(b"a job")
    made = []
    for label, plaintext in (("an empty result", b""), ("a short result", b'{"v":1}')):
        made.append(sealed("result", label, job, framed(plaintext)) | {"plaintext": plaintext.hex()})
    made.append(large(sealed("result", "two frames", job, framed(pattern(65_537))), 65_537))
    swapped = sealed("result", "settled under another job", job, framed(b"a result"))
    made.append(swapped | {"job_id": keccak256(b"another job").hex(), "refused": "undecryptable"})
    return made + refusals("result", job)


def derivation_cases() -> list[Case]:
    seed, job = fixed("a seed"), keccak256(b"a job")
    cases: list[Case] = []
    for label, chain_id, owner in (
        ("data key", CHAIN_ID, OWNER),
        ("data key of another owner", CHAIN_ID, STRANGER),
        ("data key on the widest chain id", 2**256 - 1, OWNER),
    ):
        key = key_derivation.data_key(seed, chain_id, REGISTRY, owner)
        inputs = {"seed": seed.hex(), "chain_id": str(chain_id), "job_registry": REGISTRY.hex()}
        cases.append({"name": label, "kind": "data_key", **inputs, "owner": owner.hex(), "key": key.hex()})
    key = key_derivation.result_data_key(seed, CHAIN_ID, REGISTRY, job)
    place = {"chain_id": str(CHAIN_ID), "job_registry": REGISTRY.hex()}
    cases.append(
        {"name": "result data key", "kind": "result_data_key", "seed": seed.hex(), **place}
        | {"job_id": job.hex(), "key": key.hex()}
    )
    for v in (27, 28):
        signature = fixed("a signature", 64) + bytes((v,))
        secret = key_derivation.result_key_from_signature(signature)
        cases.append(
            {"name": f"result key, v {v}", "kind": "result_key", "signature": signature.hex()}
            | {"key": secret.raw.hex(), "public": secret.public.raw.hex()}
        )
    secret = key_derivation.escrow_key(fixed("an operator's key"))
    cases.append(
        {"name": "escrow key", "kind": "escrow_key", "operator_key": fixed("an operator's key").hex()}
        | {"key": secret.raw.hex(), "public": secret.public.raw.hex()}
    )
    for v in (0, 1, 29):
        signature = fixed("a signature", 64) + bytes((v,))
        cases.append(
            {"name": f"result key, v {v}", "kind": "result_key", "signature": signature.hex()}
            | {"refused": "signature_v"}
        )
    short = fixed("a signature", 64).hex()
    cases.append({"name": "result key, 64 bytes", "kind": "result_key", "signature": short, "refused": "length"})
    return cases


def key_cases() -> list[Case]:
    cases: list[Case] = [
        {"name": "a key pair", "secret": RECIPIENT.raw.hex(), "public": RECIPIENT.public.raw.hex()},
    ]
    for label, u in LOW_ORDER.items():
        for top, suffix in ((0, ""), (1 << 255, ", top bit set")):
            raw = (u | top).to_bytes(32, "little").hex()
            cases.append({"name": label + suffix, "public": raw, "refused": "low_order"})
    cases += [
        {"name": "31 bytes", "public": fixed("public", 31).hex(), "refused": "length"},
        {"name": "33 bytes", "public": fixed("public", 33).hex(), "refused": "length"},
        {"name": "no bytes", "public": "", "refused": "length"},
    ]
    for label, plaintext in (("a sealed box", b"a message"), ("a sealed box of nothing", b"")):
        box = sealed_box(plaintext, RECIPIENT, label)
        case = {"name": label, "secret": RECIPIENT.raw.hex(), "sealed": box.hex()}
        cases.append(case | {"plaintext": plaintext.hex()})
    box = sealed_box(b"a message", RECIPIENT, "a sealed box")
    # X25519 ignores this bit. The nonce does not, because it hashes the key's bytes.
    top_flipped = box[:31] + bytes((box[31] ^ 128,)) + box[32:]
    for label, secret, bad in (
        ("a sealed box for another key", STRANGERS_KEY, box),
        ("a sealed box with its last bit flipped", RECIPIENT, box[:-1] + bytes((box[-1] ^ 1,))),
        ("a sealed box with the top bit of its key flipped", RECIPIENT, top_flipped),
        ("a sealed box cut to 47 bytes", RECIPIENT, box[:47]),
    ):
        case = {"name": label, "secret": secret.raw.hex(), "sealed": bad.hex()}
        cases.append(case | {"refused": "does_not_open"})
    return cases


def handover_cases() -> list[Case]:
    def generation(label: str, announced_from: int) -> Case:
        return {"secret": fixed(label).hex(), "announced_from": announced_from}

    def message(release: int, keys: list[Case], version: int = 1, count: int | None = None) -> bytes:
        head = bytes((version,)) + release.to_bytes(2, "big")
        head += (len(keys) if count is None else count).to_bytes(2, "big")
        body = b"".join(bytes.fromhex(k["secret"]) + k["announced_from"].to_bytes(8, "big") for k in keys)
        return head + body + fixed("signature", 65)

    def case(label: str, release: int, keys: list[Case]) -> Case:
        return {"name": label, "release": release, "keys": keys, "message": message(release, keys).hex()}

    one, two = generation("first key", 0), generation("second key", 1_800_000_000_000)
    whole = message(1, [one])
    last = {"secret": "ff" * 32, "announced_from": 2**53 - 1}
    cases: list[Case] = [case("one key", 0, [one]), case("two keys", 7, [one, two]), case("the most", 65_535, [last])]
    for label, bad in (
        ("no keys", message(1, [])),
        ("no bytes", b""),
        ("a signature alone", fixed("signature", 65)),
        ("version 0", message(1, [one], version=0)),
        ("version 2", message(1, [one], version=2)),
        ("a count above the keys", message(1, [one], count=2)),
        ("a count below the keys", message(1, [one, two], count=1)),
        ("a byte too few", whole[:-1]),
        ("a byte too many", whole + b"\0"),
    ):
        cases.append({"name": label, "message": bad.hex(), "refused": "bad_handover"})
    return cases


def evidence_cases() -> list[Case]:
    public = RECIPIENT.public.raw
    bound = hashlib.sha256(public + b"svc-coordinator-escrow-v1").hexdigest()
    measured = [
        {"name": f"measurement of release {release}", "kind": "mock_measurement", "release": release}
        | {"measurement": hashlib.sha256(b"svc-mock-measurement-v1" + release.to_bytes(2, "big")).hexdigest()}
        for release in (0, 1, 65_535)
    ]
    return [{"name": "a key", "kind": "report_data", "public": public.hex(), "report_data": bound}, *measured]


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    by_length = (
        f"plaintext_length: the pattern ({PATTERN}), sealed again by the reader under that header. "
        "sealed_length: 0x01 and the pattern."
    )
    return {
        "container.json": text_of(f"Containers v1. {by_length}", container_cases()),
        "result.json": text_of(f"Sealed results v1. {by_length}", result_cases()),
        "derivation.json": text_of("Keys derived with HKDF-SHA256.", derivation_cases()),
        "handover.json": text_of("Escrow keys on their way to a peer, as signed and before sealing.", handover_cases()),
        "escrow_evidence.json": text_of("What evidence of an escrow carries.", evidence_cases()),
        "sealed_box_keys.json": text_of("X25519 keys and sealed boxes.", key_cases()),
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")
