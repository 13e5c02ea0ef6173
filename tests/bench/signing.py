"""Signing a relay: an EIP-1559 transaction with the calldata of a settle, ready to be broadcast.

The limit is the curve arithmetic alone: one `secp256k1_ecdsa_sign_recoverable`.
"""

from collections.abc import Callable
from itertools import count

from btclib_secp256k1 import ffi, lib
from btclib_secp256k1.context import ctx
from eth_account import Account

from common import abi
from common.keccak import keccak256
from common.secp256k1 import Wallet
from common.transactions import Transaction
from tests.bench.row import Row, interleaved

PORTION = 1_000
SLOW = 100  # of what takes ten times as long
ROUNDS = 15

SECRET = keccak256(b"bench: relayer")
TO = b"\x11" * 20
DATA = abi.call(
    abi.selector("settle(bytes32,uint32,uint64,string,bytes)"),
    abi.bytes32(keccak256(b"bench: job")),
    abi.uint(512),
    abi.uint(1_800_000_000),
    abi.text("bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"),
    abi.dynamic(b"\x22" * 65),
)


def by_this_house() -> Callable[[], object]:
    wallet, nonces = Wallet(SECRET), count()
    return lambda: Transaction(31337, next(nonces), 10**9, 3 * 10**9, 250_000, TO, 0, DATA).sign(wallet)


def by_eth_account() -> Callable[[], object]:
    account, nonces = Account.from_key(SECRET), count()
    terms = {
        "type": 2,
        "chainId": 31337,
        "maxPriorityFeePerGas": 10**9,
        "maxFeePerGas": 3 * 10**9,
        "gas": 250_000,
        "to": TO,
        "value": 0,
        "data": DATA,
    }
    return lambda: account.sign_transaction(terms | {"nonce": next(nonces)})


def bare_sign() -> Callable[[], object]:
    signature = ffi.new("secp256k1_ecdsa_recoverable_signature *")
    digest, curve, null = keccak256(DATA), lib.secp256k1_ecdsa_sign_recoverable, ffi.NULL
    return lambda: curve(ctx, signature, digest, SECRET, null, null)


def _portion(sign: Callable[[], object], portion: int = PORTION) -> Callable[[], int]:
    def run() -> int:
        for _ in range(portion):
            sign()
        return portion

    return run


def rows() -> list[Row]:
    rates = interleaved(
        {
            "bare": _portion(bare_sign()),
            "ours": _portion(by_this_house()),
            "eth-account": _portion(by_eth_account(), SLOW),
        },
        ROUNDS,
    )

    def row(against: str, label: str, target: float) -> Row:
        return rates.row("sign a relay", "ours", against, label, target=target, unit="transactions/s")

    return [
        row("bare", "one bare secp256k1_ecdsa_sign_recoverable", 0.65),
        row("eth-account", "eth-account", 5),
    ]
