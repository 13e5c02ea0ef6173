"""A client written only from the specification and the protocol's page.

This module imports nothing from the project, so any reader of the two documents can do the same. One wallet, plain
requests, no retries.
"""

import hashlib
import json
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import anyio
import attrs
import httpx
from eth_account import Account
from eth_utils import keccak
from nacl.public import PrivateKey

from tests.support.specification_client import sealing, typed_data

RESULT_KEY_PURPOSE: Final = "result key"
_ESCROW_LABEL: Final = b"svc-coordinator-escrow-v1"
_POLL_SECONDS: Final = 0.05

Json = dict[str, Any]


@attrs.frozen
class Answered(Exception):
    """The coordinator returned an unexpected answer."""

    status: int
    body: Any


@attrs.frozen
class Terms:
    model: str
    sla_secs: int
    rate_in: int
    rate_out: int
    units_in: int
    units_out: int
    provider: int = 0  # 0: an open bid, sealed to the escrow


@attrs.define
class Prepared:
    """A signed order with its payment terms."""

    order: Json
    container: bytes

    @property
    def job_id(self) -> str:
        return str(self.order["job_id"])


@attrs.define
class SpecificationClient:
    http: httpx.AsyncClient
    gateway: str
    private_key: str
    deployment: Json = attrs.field(factory=dict)
    token: str = ""

    @property
    def owner(self) -> str:
        return str(Account.from_key(self.private_key).address).lower()

    # --- public reads -------------------------------------------------------------------------------------

    async def connect(self) -> None:
        self.deployment = await self._ask(200, "GET", "/evm/chain")

    async def sign_in(self) -> None:
        granted = await self._ask(200, "GET", f"/auth/nonce?address={self.owner}")
        domain = typed_data.session_domain(granted["chain_id"])
        signature = self._sign(domain, "SvcSession", {"address": self.owner, "nonce": granted["nonce"]})
        body = {"address": self.owner, "nonce": granted["nonce"], "signature": signature, "role": "client"}
        self.token = (await self._ask(200, "POST", "/auth/session", json=body))["token"]

    async def candidates(self, terms: Terms) -> list[Json]:
        """Return the providers that sell this now, best first."""
        model_id = await self._model_id(terms.model)
        probe = {"model_id": model_id, **_sizes(terms)}
        listed: list[Json] = (await self._ask(402, "POST", "/v1/jobs", json=probe))["candidates"]
        return listed

    # --- one job ------------------------------------------------------------------------------------------

    async def prepare(self, terms: Terms, model_input: Json) -> Prepared:
        """Seal the payload and sign the order."""
        model_id = await self._model_id(terms.model)
        envelope = {
            "v": 1,
            "owner": self.owner,
            "model": terms.model,
            "input": model_input,
            "result_key": "0x" + bytes(self.result_secret().public_key).hex(),
        }
        label = sealing.container_label(self._chain_id, self._registry, _raw(self.owner))
        container = sealing.seal(await self._recipient(terms.provider), label, sealing.canonical(envelope))
        c = sealing.commitment(container)
        order = {
            "c": "0x" + c.hex(),
            "model_id": model_id,
            **_sizes(terms),
            "rate_in": str(terms.rate_in),
            "rate_out": str(terms.rate_out),
            "designated": terms.provider,
            "expires_at": int(time.time()) + min(terms.sla_secs + 3600, 86_400),
        }
        message = {
            "c": c,
            "modelId": order["model_id"],
            "slaSecs": order["sla_secs"],
            "rateIn": terms.rate_in,
            "rateOut": terms.rate_out,
            "unitsIn": terms.units_in,
            "unitsOut": terms.units_out,
            "designated": terms.provider,
            "expiresAt": order["expires_at"],
        }
        order["owner"] = self.owner
        order["job_id"] = "0x" + keccak(_raw(self.owner) + c).hex()
        order["signature"] = self._sign(self._jobs_domain, "Order", message)
        return Prepared(order, container)

    async def quote(self, prepared: Prepared) -> Json:
        quote: Json = (await self._ask(402, "POST", "/v1/jobs", json=prepared.order))["quote"]
        return quote

    async def submit(self, prepared: Prepared, quote: Json) -> Json:
        paid = prepared.order | {"amount": quote["amount"], "auth_sig": self._payment(prepared, quote)}
        submission = paid | {"container": b64encode(prepared.container).decode()}
        return await self._ask(201, "POST", "/v1/jobs", json=submission)

    async def submit_uploaded(self, prepared: Prepared, quote: Json) -> Json:
        """Submit an order after uploading its container, which large ones require."""
        parts = {"purpose": (None, "input"), "file": ("container", prepared.container)}
        uploaded = await self._ask(200, "POST", "/v1/files", files=parts, headers=self._session)
        paid = prepared.order | {"amount": quote["amount"], "auth_sig": self._payment(prepared, quote)}
        return await self._ask(201, "POST", "/v1/jobs", json=paid | {"container_cid": uploaded["svc"]["cid"]})

    async def cancel(self, job_id: str) -> Json:
        issued_at = int(time.time())
        signature = self._sign(self._jobs_domain, "Cancel", {"jobId": _raw(job_id), "issuedAt": issued_at})
        body = {"issued_at": issued_at, "signature": signature}
        return await self._ask(200, "POST", f"/v1/jobs/{job_id}/cancel", json=body)

    async def wait(self, job_id: str) -> Json:
        """Poll until the job has ended, and return it. The caller sets the time limit."""
        while True:
            job = await self._ask(200, "GET", f"/v1/jobs/{job_id}")
            if job["status"] not in ("queued", "in_progress"):
                return job
            await anyio.sleep(_POLL_SECONDS)

    async def result(self, job: Json) -> Json:
        """Return the body of a completed job's result. Reading needs no authorisation, and opening needs the
        wallet's key."""
        async with httpx.AsyncClient(trust_env=False) as gateway:
            answer = await gateway.get(f"{self.gateway}/ipfs/{job['result_cid']}")
        if answer.status_code != 200:
            raise Answered(answer.status_code, answer.text)
        label = sealing.result_label(self._chain_id, self._registry, _raw(job["id"]))
        body: Json = json.loads(sealing.unseal(self.result_secret(), label, answer.content))
        assert body["v"] == 1, "another version"
        assert body["job_id"] == job["id"], "the result of another job"
        return body

    def result_secret(self) -> PrivateKey:
        """Derive the key each time. The signature from which it is derived stays in this process."""
        signature = typed_data.signed(
            self.private_key,
            typed_data.results_domain(self._chain_id),
            "ResultKey",
            {"purpose": RESULT_KEY_PURPOSE},
        )
        return PrivateKey(sealing.hkdf(signature, b"svc-result-key-v1"))

    # --- internal -----------------------------------------------------------------------------------------

    @property
    def _chain_id(self) -> int:
        return int(self.deployment["chain_id"])

    @property
    def _registry(self) -> bytes:
        return _raw(self.deployment["contracts"]["job_registry"])

    @property
    def _jobs_domain(self) -> typed_data.Domain:
        return typed_data.jobs_domain(self._chain_id, self.deployment["contracts"]["job_registry"])

    @property
    def _session(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    async def _model_id(self, name: str) -> int:
        return int((await self._ask(200, "GET", f"/v1/models/{name}"))["svc"]["model_id"])

    async def _recipient(self, provider: int) -> bytes:
        if provider:
            return _raw((await self._ask(200, "GET", f"/evm/providers/{provider}"))["box_key"])
        offered = await self._ask(200, "GET", "/key")
        key = bytes.fromhex(offered["escrow_public_key"])
        evidence = offered["evidence"]
        assert evidence["type"] == "static-coordinator-v1", "not a production escrow"
        assert evidence["debug"] is False, "an escrow under a debugger"
        assert evidence["report_data"] == hashlib.sha256(key + _ESCROW_LABEL).hexdigest(), "evidence of another key"
        return key

    def _payment(self, prepared: Prepared, quote: Json) -> str:
        """Sign the payment over locally known fields. Only the amount comes from the quote."""
        domain = {
            **self.deployment["token_domain"],
            "chainId": self._chain_id,
            "verifyingContract": self.deployment["contracts"]["paytoken"],
        }
        message = {
            "from": self.owner,
            "to": self.deployment["contracts"]["job_registry"],
            "value": int(quote["amount"]),
            "validAfter": 0,
            "validBefore": prepared.order["expires_at"] + 1,
            "nonce": _raw(prepared.job_id),
        }
        return self._sign(domain, "ReceiveWithAuthorization", message)

    def _sign(self, domain: typed_data.Domain, name: str, message: typed_data.Message) -> str:
        return "0x" + typed_data.signed(self.private_key, domain, name, message).hex()

    async def _ask(self, good: int, method: str, path: str, **request: Any) -> Json:
        answer = await self.http.request(method, path, **request)
        if answer.status_code != good:
            raise Answered(answer.status_code, answer.text)
        body: Json = answer.json()
        return body


def _sizes(terms: Terms) -> Mapping[str, int]:
    return {"sla_secs": terms.sla_secs, "units_in": terms.units_in, "units_out": terms.units_out}


def _raw(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
