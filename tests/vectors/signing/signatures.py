"""Signatures made with eth-keys, including invalid ones."""

from eth_keys import keys

from tests.vectors.signing.fixed import at, hexed
from tests.vectors.vector_file import Case

ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141


def cases() -> list[Case]:
    accepted = []
    by_v: dict[int, tuple[bytes, bytes]] = {}
    for number in range(8):
        key = keys.PrivateKey(at(f"key {number}"))
        digest = at(f"digest {number}")
        signature = key.sign_msg_hash(digest)
        raw = signature.r.to_bytes(32, "big") + signature.s.to_bytes(32, "big") + bytes([27 + signature.v])
        by_v.setdefault(raw[64], (digest, raw))
        accepted.append(
            {
                "name": f"key {number}",
                "digest": hexed(digest),
                "signature": hexed(raw),
                "signer": hexed(key.public_key.to_canonical_address()),
            }
        )
    digest, good = by_v[27]
    r, s = good[:32], good[32:64]
    mirrored = (ORDER - int.from_bytes(s, "big")).to_bytes(32, "big")
    half = (ORDER // 2).to_bytes(32, "big")
    above_half = (ORDER // 2 + 1).to_bytes(32, "big")
    order = ORDER.to_bytes(32, "big")
    for name, edge in (("the greatest low s", half), ("the least s", (1).to_bytes(32, "big"))):
        parsed = keys.Signature(vrs=(0, int.from_bytes(r, "big"), int.from_bytes(edge, "big")))
        signer = parsed.recover_public_key_from_msg_hash(digest).to_canonical_address()
        accepted.append(
            {
                "name": name,
                "digest": hexed(digest),
                "signature": hexed(r + edge + b"\x1b"),
                "signer": hexed(signer),
            }
        )
    # EIP-2098 packs the parity into the top bit of s.
    compact = by_v[28][1][:32] + bytes([by_v[28][1][32] | 0x80]) + by_v[28][1][33:64]
    refused = [
        ("high_s", "mirrored s with the other v", r + mirrored + b"\x1c"),
        ("high_s", "the least high s", r + above_half + b"\x1b"),
        ("bad_v", "v 0", r + s + b"\x00"),
        ("bad_v", "v 1", r + s + b"\x01"),
        ("bad_v", "v 26", r + s + b"\x1a"),
        ("bad_v", "v 29", r + s + b"\x1d"),
        ("bad_v", "v 35", r + s + b"\x23"),
        ("bad_v", "v 255", r + s + b"\xff"),
        ("bad_length", "empty", b""),
        ("bad_length", "64 bytes, v left off", r + s),
        ("bad_length", "64 bytes, compact of EIP-2098", compact),
        ("bad_length", "66 bytes", good + b"\x00"),
        ("r_zero", "r 0", bytes(32) + s + b"\x1b"),
        ("r_not_below_n", "r n", order + s + b"\x1b"),
        ("r_not_below_n", "r 2^256 - 1", b"\xff" * 32 + s + b"\x1b"),
        ("s_zero", "s 0", r + bytes(32) + b"\x1b"),
        ("high_s", "s n", r + order + b"\x1b"),
        ("no_point", "r is the x of no point", (5).to_bytes(32, "big") + s + b"\x1b"),
    ]
    return accepted + [
        {"name": name, "digest": hexed(digest), "signature": hexed(raw), "refused": reason}
        for reason, name, raw in refused
    ]
