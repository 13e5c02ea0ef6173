"""An order and a session for a local market's wallet, on behalf of a client that can create neither."""

import json
from typing import Any

import httpx

from common.box import PublicKey, SecretKey
from common.envelope import Envelope
from common.scalars import read_hex
from common.secp256k1 import Wallet
from devnet.accounts import DevWallet
from tests.conformance.asking import TriedCoordinator
from tests.conformance.buyer import Buyer, book_of
from tests.conformance.sessions import sign_in
from tests.conformance.verdicts import Report


async def _buyer(http: httpx.AsyncClient, wallet: DevWallet) -> Buyer:
    return Buyer(Wallet(bytes.fromhex(wallet.private_key[2:])), book_of((await http.get("/evm/chain")).json()))


async def session_of(http: httpx.AsyncClient, wallet: DevWallet) -> str:
    """Return the token of a client session."""
    buyer = await _buyer(http, wallet)
    await sign_in(TriedCoordinator(http, Report()), buyer)
    return buyer.token


async def batch_line(http: httpx.AsyncClient, wallet: DevWallet, model: str, provider: int) -> bytes:
    """Return one paid order for this provider, at its asking rates."""
    buyer = await _buyer(http, wallet)
    sizes = {"model_id": 1, "sla_secs": 3600, "units_in": 1000, "units_out": 1000}
    candidates: list[dict[str, Any]] = (await http.post("/v1/jobs", json=sizes)).json()["candidates"]
    [candidate] = [one for one in candidates if one["provider_id"] == str(provider)]
    envelope = Envelope(
        buyer.wallet.address, model, {"input": "openai", "max_output_tokens": 1000}, SecretKey.generate().public
    )
    recipient = PublicKey(read_hex(candidate["box_key"], 32, "box_key"))
    container = buyer.container(recipient, envelope.encode())
    rates = {name: int(candidate[name]) for name in ("rate_in", "rate_out")}
    order = buyer.order(container, designated=provider, **rates)
    amount = int((await http.post("/v1/jobs", json=order)).json()["quote"]["amount"])
    return json.dumps(buyer.paid(order, amount, container)).encode() + b"\n"
