"""Options of `Client` and `SyncClient`."""

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
from svc.wire.direct import DirectPolicy


class ClientOptions(TypedDict, total=False):
    """Options of a client, all optional. An option overrides its SVC_* variable. Set at most one wallet option."""

    signer: Signer | None  # a wallet that signs on request, see svc.signers
    wallet_key: str | bytes | Wallet | None  # a private key in this process
    without_wallet: bool  # use no wallet, not even one from the environment
    cipher_key: str | bytes | SecretKey | None  # the X25519 secret that opens results
    gateways: str | Sequence[str] | None  # gateways to read results from; empty: read no results
    settlement_margin: int | None  # an order expires this many seconds after its window
    addresses: AddressBook | Path | str | None  # address book or its file; other contracts are rejected
    known_markets: KnownMarkets | Path | str | None  # file of known markets; None: keep them in memory
    require_known_market: bool  # reject a market that is neither in `addresses` nor known
    on_first_use: Callable[[str], object]  # called with a text for each remembered fact; default: warn MarketRemembered
    rpc_url: str | Sequence[str] | None  # nodes of the chain to check the coordinator against; all must agree
    max_amount: int | None  # maximum amount of an order or a batch line, in base units
    max_batch_amount: int | None  # maximum amount of a whole batch; default: ten times max_amount
    tab_direct: DirectPolicy  # addresses at which tabs connect to providers: "public" (default), "any" or "off"
    insecure_http: bool | None  # allow plain http:// to other machines
    profile: str | None  # name of a profile, see svc.profiles
    escrow_keys: Collection[str]  # accepted keys of the escrow; other keys are rejected
    allow_mock_escrow: bool  # for tests: accept a development escrow
    allow_debug_escrow: bool  # for tests: accept an escrow that is a debug build
    retries: RetryPolicy
    http: httpx.AsyncClient  # connection pool with the coordinator as base_url; the caller closes it
    environment: Mapping[str, str]  # used instead of the process's environment
