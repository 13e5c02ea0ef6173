"""A client's work for an order (shape, seal, sign, pay), compared with the cryptography in it.

The limit is one sealed box, 4 KiB of secretstream, the hash of the result, and two bare signatures.

Batches are measured end to end, from lines of JSON to a file of submissions, and compared with one line after another.
"""

import json
import os
import time
from collections.abc import Callable

import anyio
from btclib_secp256k1 import ffi as curve_ffi
from btclib_secp256k1 import lib as curve
from btclib_secp256k1.context import ctx
from nacl import bindings
from nacl._sodium import ffi, lib

from common.api.chain import reported_book
from common.box import SecretKey
from common.keccak import keccak256
from common.quotes import FeeTerms
from common.secp256k1 import Wallet
from svc.core.batch_bids import JobLines
from svc.core.batch_lines import read_lines
from svc.core.batches import BatchContext, JobOrder, PreparedJob, prepare_jobs
from svc.core.bids import Bid, Rates, read_rates
from svc.core.market import Market
from svc.core.money import Token, line_ceiling
from svc.core.order_request import OrderRequest, price_request
from svc.records import Contracts, Deployment, Model, ModelDetails, TokenName
from tests.bench.row import Row, Turns, interleaved
from tests.unit.svc.fake_coordinator import FakeCoordinator, quoting

PORTION = 500
ROUNDS = 9
LINES = 10_000
BATCH_ROUNDS = 3

KEY = keccak256(b"bench: client")
WALLET = Wallet(KEY)
RECIPIENT = SecretKey(keccak256(b"bench: recipient")).public
TEXT = "x" * 4096
CONTRACTS = Contracts(*("0x" + f"{n:02x}" * 20 for n in range(1, 5)))
MARKET = Market.of(reported_book(Deployment(31337, CONTRACTS, 6, TokenName("Bench Dollar", "1"), 1, 1, 1000, 250)))
CEILING = line_ceiling(Token("Bench Dollar", 6, vouched=True), None, None)
MODEL = Model("demo/text", "bench", ModelDetails(1, True))
PLACE = BatchContext(MARKET, WALLET.address, RECIPIENT, int(time.time()) + 7200, FeeTerms(250, 2_000), CEILING)
LINE = json.dumps({"body": {"model": MODEL.id, "rate_in": 1_000_000, "rate_out": 2_000_000, "input": TEXT}})


def _prepared(request: OrderRequest) -> None:
    """Prepare one order, from its input to the body to post."""
    bid = Bid(read_rates(request.rate_in, request.rate_out) or Rates(0, 0), 7)
    job = JobLines(1, [price_request(request, MODEL)], bid)
    (prepared,) = prepare_jobs(PLACE, WALLET, [JobOrder(job, RECIPIENT)])
    if not isinstance(prepared, PreparedJob):
        raise RuntimeError(str(prepared.refusal))


def one_order() -> int:
    for _ in range(PORTION):
        _prepared(OrderRequest(MODEL.id, {"input": TEXT}, "1h", rate_in=1_000_000, rate_out=2_000_000))
    return PORTION


def one_line_after_another() -> int:
    for _ in range(PORTION):
        _prepared(next(read_lines([LINE], "1h")).request)
    return PORTION


def cryptography_alone() -> Callable[[], int]:
    state = ffi.new("unsigned char[]", lib.crypto_secretstream_xchacha20poly1305_statebytes())
    plaintext = TEXT.encode()
    header, out = ffi.new("unsigned char[]", 24), ffi.new("unsigned char[]", len(plaintext) + 17)
    signature, digest = curve_ffi.new("secp256k1_ecdsa_recoverable_signature *"), keccak256(b"digest")
    null = curve_ffi.NULL

    def run() -> int:
        for _ in range(PORTION):
            seed = os.urandom(32)
            bindings.crypto_box_seal(seed, RECIPIENT.raw)
            lib.crypto_secretstream_xchacha20poly1305_init_push(state, header, seed)
            lib.crypto_secretstream_xchacha20poly1305_push(
                state, out, ffi.NULL, plaintext, len(plaintext), ffi.NULL, 0, 0
            )
            keccak256(ffi.buffer(out)[:])
            for _ in range(2):
                curve.secp256k1_ecdsa_sign_recoverable(ctx, signature, digest, KEY, null, null)
        return PORTION

    return run


async def _batch_rate() -> float:
    client = FakeCoordinator({"POST /v1/jobs": [quoting()]}).client()
    started = time.perf_counter()
    prepared = await client.batches.prepare([LINE] * LINES, window="1h", providers=[7], max_amount=10**12)
    elapsed = time.perf_counter() - started
    if prepared.lines != LINES:
        raise RuntimeError(f"{prepared.lines} of {LINES} lines were prepared")
    return LINES / elapsed


def _batches() -> Row:
    rates: dict[str, list[float]] = {"ours": [], "line": []}
    for _ in range(BATCH_ROUNDS):
        rates["line"].append(interleaved({"line": one_line_after_another}, 3)["line"])
        rates["ours"].append(anyio.run(_batch_rate))
    against = "one line after another"
    return Turns(rates).row(f"{LINES} batch lines prepared", "ours", "line", against, target=0.8, unit="lines/s")


def rows() -> list[Row]:
    """The figures of "The client"."""
    against = "its cryptography alone"
    taken = interleaved({against: cryptography_alone(), "order": one_order}, ROUNDS)
    name = "4 KiB order built, sealed, signed"
    return [taken.row(name, "order", against, against, target=0.33, unit="orders/s"), _batches()]
