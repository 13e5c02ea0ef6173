"""Check one submission: two signatures over typed data, and the job id. Starts from the parsed order.

The limit is the curve arithmetic alone: two bare `secp256k1_ecdsa_recover`. Both by CPU time.
"""

import time
from collections.abc import Callable

from btclib_secp256k1 import ffi, lib
from btclib_secp256k1.context import ctx

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.keccak import keccak256
from common.messages.jobs import Order
from common.messages.payments import job_payment, packed_job_payment
from common.quotes import derive_job_id
from common.secp256k1 import Wallet
from tests.bench.row import Row, interleaved

PORTION = 50
SECONDS, TURN_S = 6, 0.1

OWNER = Wallet(keccak256(b"bench: owner"))
BOOK = AddressBook(31337, 0, b"\x11" * 20, b"\x22" * 20, b"\x33" * 20, b"\x44" * 20, 6, TokenDomain("Dev Dollar", "1"))
DOMAINS = Domains.of(BOOK)
TERMS = (keccak256(b"bench: c"), 7, 3600, 150_000, 600_000, 1_200, 800, 0, 1_800_003_600)
AMOUNT = 123_456_789
ORDER = Order(*TERMS)
JOB_ID = derive_job_id(OWNER.address, ORDER.c)
ORDER_SIGNATURE = OWNER.sign(DOMAINS.jobs.digest(ORDER))
PAYMENT_SIGNATURE = OWNER.sign(
    DOMAINS.token.digest(job_payment(OWNER.address, BOOK.job_registry, AMOUNT, ORDER.expires_at, JOB_ID))
)


def by_this_house() -> bool:
    expected = derive_job_id(OWNER.address, ORDER.c)
    payment = packed_job_payment(OWNER.address, BOOK.job_registry, AMOUNT, ORDER.expires_at, expected)
    return (
        expected == JOB_ID
        and DOMAINS.jobs.signer(ORDER, ORDER_SIGNATURE) == OWNER.address
        and DOMAINS.token.packed_signer(payment, PAYMENT_SIGNATURE) == OWNER.address
    )


def bare_recover() -> Callable[[], bool]:
    key = ffi.new("secp256k1_pubkey *")
    signature = ffi.new("secp256k1_ecdsa_recoverable_signature *")
    lib.secp256k1_ecdsa_recoverable_signature_parse_compact(
        ctx, signature, ORDER_SIGNATURE[:64], ORDER_SIGNATURE[64] - 27
    )
    digest = DOMAINS.jobs.digest(ORDER)
    curve = lib.secp256k1_ecdsa_recover
    return lambda: bool(curve(ctx, key, signature, digest) and curve(ctx, key, signature, digest))


def _portion(check: Callable[[], bool], portion: int = PORTION) -> Callable[[], int]:
    def run() -> int:
        for _ in range(portion):
            if not check():
                raise AssertionError("a good submission was refused")
        return portion

    return run


def rows() -> list[Row]:
    rates = interleaved(
        {"bare": _portion(bare_recover()), "ours": _portion(by_this_house)}, SECONDS, TURN_S, time.process_time
    )
    against = "two bare secp256k1_ecdsa_recover"
    return [rates.row("check a submission", "ours", "bare", against, target=0.75, unit="checks/s")]
