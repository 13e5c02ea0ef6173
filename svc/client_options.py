"""Options that both clients are made with."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import httpx

from common.address_book import AddressBook
from common.box import SecretKey
from common.secp256k1 import Wallet
from svc.core.retries import RetryPolicy
from svc.known_markets import KnownMarkets
from svc.signers import Signer


class ClientOptions(TypedDict, total=False):
    """All optional. Of the keys, one way each: what is given here wins over the environment."""

    signer: Signer | None  # a wallet that is asked, see svc.signers
    wallet_key: str | bytes | Wallet | None  # a private key in this process
    without_wallet: bool  # none is looked for in the environment: for what needs no signature
    cipher_key: str | bytes | SecretKey | None  # an X25519 secret that results are sealed to
    gateways: str | Sequence[str] | None  # that results are read from; empty disables reads
    settlement_margin: int | None  # seconds that an order outlives its window
    addresses: AddressBook | Path | str | None  # the address book (or its file): another deployment is refused
    known_markets: KnownMarkets | Path | str | None  # what first uses are remembered in; none: in this client alone
    require_known_market: bool  # refuse a market that is neither pinned by `addresses` nor known already
    on_first_use: Callable[[str], object]  # told what was remembered; else it is a warning, MarketRemembered
    rpc_url: str | Sequence[str] | None  # nodes of the chain that what is told is held against; they must agree
    max_amount: int | None  # the most that one order, or line of a batch, may come to, in base units
    max_batch_amount: int | None  # the most that a batch may come to in all
    insecure_http: bool | None  # take http:// to other machines
    profile: str | None  # of the file of profiles, see svc.profiles
    escrow_keys: Collection[str]  # pins the escrow's key: another is refused
    allow_mock_escrow: bool  # for tests: a development escrow
    allow_debug_escrow: bool  # for tests: a debug build
    retries: RetryPolicy
    http: httpx.AsyncClient  # the connection pool, with the coordinator as base_url; closed by whoever made it
    environment: Mapping[str, str]  # instead of the process's
