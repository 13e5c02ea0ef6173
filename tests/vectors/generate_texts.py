"""Make the vectors of strict JSON, envelopes and content ids: `python -m tests.vectors.generate_texts`."""

import base64
import hashlib

from common.box import SecretKey
from common.canonical_json import canonical
from common.cid import Cid, ImportProfile, cid_of
from tests.vectors.vector_file import FOLDER, PATTERN, Case, pattern, text_of

OWNER = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
JOB_ID = "0x" + hashlib.sha256(b"a job").hexdigest()
RESULT_KEY = "0x" + SecretKey(hashlib.sha256(b"a result key").digest()).public.raw.hex()

ACCEPTED_JSON = (
    # name, text, canonical spelling
    ("null", "null", "null"),
    ("spaces", ' { "a" : [ 1 , true ] } ', '{"a":[1,true]}'),
    ("keys out of order", '{"b":1,"a":2,"":3}', '{"":3,"a":2,"b":1}'),
    ("keys by UTF-16, not by code point", '{"\U0001f600":1,"\ufb01":2}', '{"\U0001f600":1,"\ufb01":2}'),
    ("same key at two places", '{"a":{"a":1}}', '{"a":{"a":1}}'),
    ("escapes that are not needed", '"\\u0041\\/\\u00e9\\ud83d\\ude00"', '"A/é\U0001f600"'),
    ("escapes that are needed", '"\\"\\\\\\b\\f\\n\\r\\t\\u001F"', '"\\"\\\\\\b\\f\\n\\r\\t\\u001f"'),
    ("DEL and line separators stay", '"\x7f\u2028"', '"\x7f\u2028"'),
    ("an escaped backslash before u0000", '"\\\\u0000"', '"\\\\u0000"'),
    ("a whole number with a fraction", "[1.0,-0.0,-0,1e2]", "[1,0,0,100]"),
    ("fractions", "[0.1,1.10,-2.5e-3]", "[0.1,1.1,-0.0025]"),
    ("small numbers without exponent", "[1e-5,1.5e-6,-0.000001]", "[0.00001,0.0000015,-0.000001]"),
    ("small numbers with exponent", "[1e-7,-1.25e-10]", "[1e-7,-1.25e-10]"),
    ("large numbers with exponent", "[1e21,-1.5E+300]", "[1e+21,-1.5e+300]"),
    (
        "the safe integers' ends",
        "[9007199254740991,-9007199254740991]",
        "[9007199254740991,-9007199254740991]",
    ),
    ("underflow to zero", "1e-400", "0"),
    ("depth 32", "[" * 32 + "]" * 32, "[" * 32 + "]" * 32),
    ("brackets in strings are no depth", '"' + "[" * 40 + '"', '"' + "[" * 40 + '"'),
)

REFUSED_JSON = (
    # name, text, failure class
    ("nothing", "", "syntax"),
    ("two values", "1 2", "syntax"),
    ("a trailing comma", "[1,]", "syntax"),
    ("a leading zero", "01", "syntax"),
    ("a plus sign", "+1", "syntax"),
    ("an underscore", "1_000", "syntax"),
    ("digits of another script", "\u0661\u0662", "syntax"),
    ("a comment", "[1/**/]", "syntax"),
    ("a control character", '"\t"', "syntax"),
    ("a no-break space", "\u00a01", "syntax"),
    ("a byte order mark", "\ufeff1", "syntax"),
    ("NaN", "NaN", "constant"),
    ("Infinity", "[Infinity]", "constant"),
    ("minus Infinity", "-Infinity", "constant"),
    ("1e400", '{"a":1e400}', "infinite"),
    ("-1e400", "-1e400", "infinite"),
    ("a duplicate key", '{"a":1,"a":1}', "duplicate_key"),
    ("a duplicate key, one escaped", '{"a":1,"\\u0061":2}', "duplicate_key"),
    ("a duplicate key inside", '[{"b":{"a":1,"c":2,"a":3}}]', "duplicate_key"),
    ("depth 33 of arrays", "[" * 33 + "]" * 33, "too_deep"),
    ("depth 33 of objects", '{"a":' * 33 + "1" + "}" * 33, "too_deep"),
    ("NUL in a string", '"a\\u0000b"', "nul"),
    ("NUL in a key", '{"\\u0000":1}', "nul"),
    ("a high surrogate alone", '["\\ud800"]', "lone_surrogate"),
    ("a low surrogate alone", '"\\udc00x"', "lone_surrogate"),
    ("surrogates in the wrong order", '"\\ude00\\ud83d"', "lone_surrogate"),
    ("a lone surrogate in a key", '{"\\uD834":1}', "lone_surrogate"),
    # `parse` accepts these, but they have no canonical spelling, because languages read them differently.
    ("2^53", "9007199254740992", "unsafe_integer"),
    ("2^53 as a fraction", "9007199254740992.0", "unsafe_integer"),
    ("below -2^53", "[-9007199254740993]", "unsafe_integer"),
    ("a whole number below 1e21", "1e20", "unsafe_integer"),
)

REFUSED_BYTES = (
    ("a byte that is not UTF-8", b'"\xff"', "not_utf8"),
    ("an overlong encoding", b'"\xc0\xaf"', "not_utf8"),
    ("a surrogate encoded as UTF-8", b'"\xed\xa0\x80"', "not_utf8"),
    ("a cut character", b'"\xe2\x82', "not_utf8"),
)


def json_cases() -> list[Case]:
    cases: list[Case] = [{"name": name, "text": text, "canonical": spelling} for name, text, spelling in ACCEPTED_JSON]
    cases += [{"name": name, "text": text, "refused": failure} for name, text, failure in REFUSED_JSON]
    cases += [{"name": name, "hex": raw.hex(), "refused": failure} for name, raw, failure in REFUSED_BYTES]
    return cases


def envelope_cases() -> list[Case]:
    envelope: Case = {
        "v": 1,
        "owner": OWNER,
        "model": "vendor/model-8b",
        "input": {"max_tokens": 16, "temperature": 0.7, "prompt": "héllo"},
        "result_key": RESULT_KEY,
    }
    body: Case = {"v": 1, "job_id": JOB_ID, "output": {"text": "ok"}, "usage": {"completion_tokens": 2}}
    cases: list[Case] = []

    def accepted(name: str, kind: str, fields: Case) -> None:
        cases.append({"name": name, "kind": kind, "fields": fields, "text": canonical(fields).decode()})

    def refused(name: str, kind: str, text: str) -> None:
        failure = "malformed_envelope" if kind == "envelope" else "malformed_result"
        cases.append({"name": name, "kind": kind, "text": text, "refused": failure})

    accepted("an envelope", "envelope", envelope)
    accepted("an envelope with a custom id", "envelope", envelope | {"custom_id": "line-1"})
    accepted("a custom id of 64 characters", "envelope", envelope | {"custom_id": "\U0001f600" * 64})
    accepted("an empty input object", "envelope", envelope | {"input": {}})
    accepted("a result body", "result", body)
    for name, output in (("null", None), ("text", "ok"), ("an array", [1, 0.5])):
        accepted(f"an output that is {name}", "result", body | {"output": output})

    for name, change in (
        ("version 2", {"v": 2}),
        ("version true", {"v": True}),
        ("version as text", {"v": "1"}),
        ("an input that is text", {"input": "hello"}),
        ("an input that is null", {"input": None}),
        ("an empty model", {"model": ""}),
        ("a model that is a number", {"model": 1}),
        ("an owner in mixed case", {"owner": "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"}),
        ("an owner without 0x", {"owner": OWNER[2:]}),
        ("an owner of 19 bytes", {"owner": OWNER[:-2]}),
        ("a result key of 31 bytes", {"result_key": RESULT_KEY[:-2]}),
        ("a result key that is a low-order point", {"result_key": "0x" + "00" * 32}),
        ("a result key that is null", {"result_key": None}),
        ("an empty custom id", {"custom_id": ""}),
        ("a custom id that is null", {"custom_id": None}),
        ("a custom id of 65 characters", {"custom_id": "x" * 65}),
        ("a field that the format does not have", {"extra": 1}),
    ):
        refused(f"an envelope with {name}", "envelope", canonical(envelope | change).decode())
    for field in envelope:
        rest = {name: value for name, value in envelope.items() if name != field}
        refused(f"an envelope without {field}", "envelope", canonical(rest).decode())
    spelled = canonical(envelope).decode()
    refused("an envelope with a space", "envelope", spelled.replace(":", ": ", 1))
    refused("an envelope with a final newline", "envelope", spelled + "\n")
    refused("an envelope with 0.7 as 0.70", "envelope", spelled.replace("0.7", "0.70"))
    refused("an envelope with an escape that is not needed", "envelope", spelled.replace("é", "\\u00e9"))
    refused("an envelope with its keys out of order", "envelope", '{"v":1,' + spelled[1:].replace(',"v":1', ""))
    refused("an envelope with a key twice", "envelope", spelled.replace('"v":1', '"v":1,"v":1'))
    refused("an envelope that is an array", "envelope", "[]")
    for name, change in (
        ("version 2", {"v": 2}),
        ("a job id of 31 bytes", {"job_id": JOB_ID[:-2]}),
        ("a job id in upper case", {"job_id": "0x" + JOB_ID[2:].upper()}),
        ("usage that is null", {"usage": None}),
        ("a field that the format does not have", {"owner": OWNER}),
    ):
        refused(f"a result body with {name}", "result", canonical(body | change).decode())
    for field in body:
        rest = {name: value for name, value in body.items() if name != field}
        refused(f"a result body without {field}", "result", canonical(rest).decode())
    return cases


def cid_cases() -> list[Case]:
    cases: list[Case] = []
    small = ImportProfile(chunk_size=4, width=3)
    usual = ImportProfile()
    for profile, lengths in (
        (small, (0, 1, 4, 5, 12, 13, 36, 37, 40, 108, 109)),
        (usual, (0, 11, 1 << 20, (1 << 20) + 1, 5_000_000)),
        (ImportProfile(chunk_size=64, width=1024), (64 * 1024, 64 * 1024 + 1)),
        (ImportProfile(chunk_size=262_144, width=174), (1_000_000,)),
    ):
        for length in lengths:
            cid = cid_of(pattern(length), profile)
            cases.append(
                {"name": f"{length} bytes in chunks of {profile.chunk_size}, {profile.width} wide"}
                | {"length": length, "chunk_size": profile.chunk_size, "width": profile.width}
                | {"cid": str(cid), "codec": cid.codec, "digest": cid.digest.hex()}
            )
    digest = hashlib.sha256(b"a block").digest()
    good = str(Cid("raw", digest))
    raw = Cid("raw", digest).encode()

    def base32(changed: bytes) -> str:
        return "b" + base64.b32encode(changed).decode().rstrip("=").lower()

    for name, codec in (("raw block", "raw"), ("dag-pb block", "dag-pb")):
        cid = Cid(codec, digest)
        said = {"text": str(cid), "codec": cid.codec, "digest": cid.digest.hex()}
        cases.append({"name": f"a text that is the CID of a {name}", **said})
    for name, text in (
        ("nothing", ""),
        ("upper case after b", "b" + good[1:].upper()),
        ("upper-case base32", "B" + good[1:].upper()),
        ("one letter in upper case", good[:-2] + good[-2].upper() + good[-1]),
        ("padding", good + "======"),
        ("a stray bit in the last digit", good[:-1] + chr(ord(good[-1]) + 1)),
        ("one digit fewer", good[:-1]),
        ("one digit more", good + "a"),
        ("a space before", " " + good),
        ("a newline after", good + "\n"),
        ("a path", good + "/"),
        ("a digit that base32 lacks", good[:10] + "1" + good[11:]),
        ("base16", "f" + raw.hex()),
        ("CIDv0", "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"),
        ("the codec dag-cbor", base32(raw[:1] + b"\x71" + raw[2:])),
        ("the hash sha2-512, cut to 32 bytes", base32(raw[:2] + b"\x13" + raw[3:])),
        ("a digest of 31 bytes", base32(raw[:3] + b"\x1f" + raw[4:-1])),
        ("version 2", base32(b"\x02" + raw[1:])),
    ):
        cases.append({"name": f"a text that is no accepted CID: {name}", "text": text, "refused": "malformed_cid"})
    return cases


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        "strict_json.json": text_of("JSON texts, and the canonical spelling of each.", json_cases()),
        "envelope.json": text_of("Plaintexts of containers and results.", envelope_cases()),
        "cid.json": text_of(f"Content ids of files (length: the pattern, {PATTERN}), and of texts.", cid_cases()),
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")
