"""What both clients are made with."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

import httpx

from common.address_book import AddressBook
from common.box import SecretKey
from common.secp256k1 import Wallet
from svc.core.retries import RetryPolicy
from svc.signers import Signer


class ClientOptions(TypedDict, total=False):
    """All optional. Of the keys, one way each: what is given here wins over the environment."""

    signer: Signer | None  # a wallet that is asked, see svc.signers
    wallet_key: str | bytes | Wallet | None  # a private key in this process
    cipher_key: str | bytes | SecretKey | None  # an X25519 secret that results are sealed to
    gateways: str | Sequence[str] | None  # that results are read from; empty disables reads
    settlement_margin: int | None  # seconds that an order outlives its window
    addresses: AddressBook | None  # pins the deployment: another is refused
    escrow_keys: Collection[str]  # pins the escrow's key: another is refused
    allow_mock_escrow: bool  # for tests: a development escrow
    allow_debug_escrow: bool  # for tests: a debug build
    retries: RetryPolicy
    http: httpx.AsyncClient  # the connection pool, with the coordinator as base_url; closed by whoever made it
    environment: Mapping[str, str]  # instead of the process's
