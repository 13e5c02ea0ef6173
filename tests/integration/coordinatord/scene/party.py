"""Clients and providers of the coordinator, and their signatures."""

import itertools
import secrets
import time
from collections.abc import Iterator
from typing import Any

import attrs
import httpx

from common.address_book import AddressBook
from common.box import PublicKey
from common.container import commitment_of, seal
from common.domains import Domains
from common.messages.escrow import Release
from common.messages.jobs import Cancel, Claim, Fail, Order, Settle
from common.messages.payments import job_payment
from common.messages.providers import Ask, AskSnapshot, RequestCapacity, SetIdentity
from common.messages.sessions import SvcSession
from common.quotes import derive_job_id
from common.scalars import base64_of, hex_of
from common.secp256k1 import Wallet
from devnet.accounts import DevWallet

Body = dict[str, Any]


def wallet_of(wallet: DevWallet) -> Wallet:
    return Wallet(bytes.fromhex(wallet.private_key[2:]))


@attrs.define
class Party:
    """One wallet and its HTTP client of the coordinator."""

    wallet: Wallet
    domains: Domains
    registry: bytes
    http: httpx.AsyncClient
    box_key: bytes
    token: str = ""
    times: Iterator[int] = attrs.field(factory=lambda: itertools.count(int(time.time()) + 100))

    @classmethod
    def at(cls, wallet: DevWallet, book: AddressBook, http: httpx.AsyncClient) -> "Party":
        return cls(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)

    @property
    def address(self) -> str:
        return hex_of(self.wallet.address)

    @property
    def authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    # --- sessions -----------------------------------------------------------------------------------------

    async def session_body(self, **changed: object) -> Body:
        nonce = (await self.http.get("/auth/nonce", params={"address": self.address})).json()["nonce"]
        return self.answer_to(nonce, **changed)

    def answer_to(self, nonce: str, /, **changed: object) -> Body:
        """Return the body that exchanges a nonce for a session."""
        signature = self.wallet.sign(self.domains.session.digest(SvcSession(self.wallet.address, nonce)))
        return {"address": self.address, "nonce": nonce, "signature": hex_of(signature), **changed}

    async def sign_in(self, role: str = "client") -> None:
        response = await self.http.post("/auth/session", json=await self.session_body(role=role))
        assert response.status_code == 200, response.text
        self.token = response.json()["token"]

    # --- orders -------------------------------------------------------------------------------------------

    def container(self, payload: bytes = b"payload", to: PublicKey | None = None) -> bytes:
        """Seal to `to`, or by default to the party itself."""
        recipient = to if to is not None else PublicKey(self.box_key)
        return seal(recipient, 31337, self.registry, self.wallet.address, payload)

    def order(self, container: bytes | None = None, **changed: Any) -> Body:
        """Return a signed order. Overridden fields are covered by the signature, except `job_id`, `owner` and
        `signature`."""
        c = commitment_of(container).c if container is not None else secrets.token_bytes(32)
        terms: Body = {
            "c": c,
            "model_id": 1,
            "sla_secs": 3600,
            "rate_in": 1_000_000,
            "rate_out": 2_000_000,
            "units_in": 1000,
            "units_out": 1000,
            "designated": 0,
            "expires_at": int(time.time()) + 7200,
        }
        terms |= {name: changed.pop(name) for name in list(changed) if name in terms}
        order = Order(**terms)
        signature = self.wallet.sign(self.domains.jobs.digest(order))
        body = {name: str(value) for name, value in terms.items() if name != "c"}
        return {
            **body,
            "c": hex_of(order.c),
            "owner": self.address,
            "job_id": hex_of(derive_job_id(self.wallet.address, order.c)),
            "signature": hex_of(signature),
            **changed,
        }

    def pay(self, order: Body, amount: int) -> Body:
        payment = job_payment(
            self.wallet.address, self.registry, amount, int(order["expires_at"]), bytes.fromhex(order["job_id"][2:])
        )
        signature = self.wallet.sign(self.domains.token.digest(payment))
        return {**order, "amount": str(amount), "auth_sig": hex_of(signature)}

    async def paid(self, container: bytes | None = None, **changed: Any) -> Body:
        """Return a complete submission: quoted, paid, with its container."""
        content = container if container is not None else self.container()
        order = self.order(content, **changed)
        quoted = await self.http.post("/v1/jobs", json=order)
        assert quoted.status_code == 402, quoted.text
        amount = int(quoted.json()["quote"]["amount"])
        return {**self.pay(order, amount), "container": base64_of(content)}

    async def post(self, **changed: Any) -> Body:
        """Post a job."""
        response = await self.http.post("/v1/jobs", json=await self.paid(**changed))
        assert response.status_code == 201, response.text
        posted: Body = response.json()
        return posted

    def cancel(self, job: str, issued_at: int | None = None) -> Body:
        at = issued_at if issued_at is not None else int(time.time())
        signature = self.wallet.sign(self.domains.jobs.digest(Cancel(bytes.fromhex(job[2:]), at)))
        return {"issued_at": at, "signature": hex_of(signature)}

    # --- files --------------------------------------------------------------------------------------------

    async def upload(self, purpose: str, content: bytes, name: str = "file") -> httpx.Response:
        form = {"data": {"purpose": purpose}, "files": {"file": (name, content)}}
        return await self.http.post("/v1/files", **form, headers=self.authorization)  # type: ignore[arg-type] # httpx's own union

    async def read_file(self, file_id: str, suffix: str = "") -> httpx.Response:
        return await self.http.get(f"/v1/files/{file_id}{suffix}", headers=self.authorization)

    # --- ops ----------------------------------------------------------------------------------------------

    def claim(self, job: str, issued_at: int | None = None) -> Body:
        return self._job_op("claim", job, issued_at, Claim)

    def fail(self, job: str, issued_at: int | None = None) -> Body:
        return self._job_op("fail", job, issued_at, Fail)

    def settle(self, job: str, completion_tok: int = 10, issued_at: int | None = None, **more: object) -> Body:
        at = issued_at if issued_at is not None else int(time.time())
        signed = self.domains.jobs.digest(Settle(bytes.fromhex(job[2:]), completion_tok, at))
        return {
            "op": "settle",
            "job_id": job,
            "completion_tok": completion_tok,
            "issued_at": at,
            "signature": hex_of(self.wallet.sign(signed)),
            **more,
        }

    def set_identity(self, box_key: bytes, evidence: bytes, issued_at: int | None = None) -> Body:
        at = issued_at if issued_at is not None else next(self.times)
        signed = self.domains.providers.digest(SetIdentity(box_key, evidence, at))
        return {
            "op": "set_identity",
            "box_key": hex_of(box_key),
            "evidence": hex_of(evidence),
            "issued_at": at,
            "signature": hex_of(self.wallet.sign(signed)),
        }

    def request_capacity(self, n: int, issued_at: int | None = None) -> Body:
        at = issued_at if issued_at is not None else next(self.times)
        signed = self.domains.providers.digest(RequestCapacity(n, at))
        return {"op": "request_capacity", "n": n, "issued_at": at, "signature": hex_of(self.wallet.sign(signed))}

    def _job_op(self, op: str, job: str, issued_at: int | None, message: type[Claim] | type[Fail]) -> Body:
        at = issued_at if issued_at is not None else int(time.time())
        signed = self.domains.jobs.digest(message(bytes.fromhex(job[2:]), at))
        return {"op": op, "job_id": job, "issued_at": at, "signature": hex_of(self.wallet.sign(signed))}

    def asks(self, provider_id: int, *quotes: tuple[int, int, int, int], signed_at: int | None = None) -> Body:
        at = signed_at if signed_at is not None else int(time.time())
        snapshot = AskSnapshot(provider_id, at, tuple(Ask(*quote) for quote in quotes))
        names = ("model_id", "sla", "rate_in", "rate_out")
        return {
            "snapshot": {
                "provider_id": provider_id,
                "signed_at": at,
                "quotes": [dict(zip(names, map(str, quote), strict=True)) for quote in quotes],
            },
            "signature": hex_of(self.wallet.sign(self.domains.asks.digest(snapshot))),
        }

    def release(self, job: str, container: bytes, response: PublicKey, issued_at: int | None = None) -> Body:
        """Return a request for the payload key, sealed to `response`."""
        at = issued_at if issued_at is not None else int(time.time())
        parts = commitment_of(container)
        message = Release(bytes.fromhex(job[2:]), parts.seed_wrap, parts.ct_hash, response.raw, at)
        return {
            "job_id": job,
            "seed_wrap": base64_of(parts.seed_wrap),
            "ct_hash": hex_of(parts.ct_hash),
            "response_pubkey": response.raw.hex(),
            "issued_at": at,
            "signature": hex_of(self.wallet.sign(self.domains.escrow.digest(message))),
        }

    async def run(self, op: Body) -> httpx.Response:
        return await self.http.post("/evm/ops", json=op, headers=self.authorization)

    async def publish(self, body: Body) -> httpx.Response:
        return await self.http.put("/evm/asks", json=body, headers=self.authorization)
