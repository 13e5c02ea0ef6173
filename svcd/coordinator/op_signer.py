"""Build and sign the request bodies of a provider's ops."""

from collections.abc import Sequence

import attrs

from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.escrow import Release
from common.messages.jobs import Claim, Fail, Order, Settle
from common.messages.providers import Ask, AskSnapshot, RequestCapacity, SetIdentity
from common.messages.sessions import SvcSession
from common.scalars import base64_of, hex_of
from common.secp256k1 import Wallet

RequestBody = dict[str, object]


@attrs.frozen(slots=True)
class OpSigner:
    wallet: Wallet
    domains: Domains

    @property
    def address(self) -> str:
        return hex_of(self.wallet.address)

    def sign_session(self, nonce: str, role: str) -> RequestBody:
        signature = self._sign(self.domains.session.digest(SvcSession(self.wallet.address, nonce)))
        return {"address": self.address, "nonce": nonce, "signature": signature, "role": role}

    def sign_claim(self, job_id: bytes, order: Order, issued_at: int) -> RequestBody:
        """Sign a claim. `terms`, the order's hash, is not signed, but the chain rejects the claim of another order."""
        return {
            "op": "claim",
            "job_id": hex_of(job_id),
            "issued_at": issued_at,
            "signature": self._sign(self.domains.jobs.digest(Claim(job_id, issued_at))),
            "terms": hex_of(struct_hash(order)),
        }

    def sign_settle(self, job_id: bytes, completion_tok: int, issued_at: int) -> RequestBody:
        """Sign a settle. The caller adds the unsigned `result` or `result_cid`."""
        return {
            "op": "settle",
            "job_id": hex_of(job_id),
            "completion_tok": completion_tok,
            "issued_at": issued_at,
            "signature": self._sign(self.domains.jobs.digest(Settle(job_id, completion_tok, issued_at))),
        }

    def sign_fail(self, job_id: bytes, issued_at: int) -> RequestBody:
        signature = self._sign(self.domains.jobs.digest(Fail(job_id, issued_at)))
        return {"op": "fail", "job_id": hex_of(job_id), "issued_at": issued_at, "signature": signature}

    def sign_set_identity(self, box_key: bytes, evidence: bytes, issued_at: int) -> RequestBody:
        return {
            "op": "set_identity",
            "box_key": hex_of(box_key),
            "evidence": hex_of(evidence),
            "issued_at": issued_at,
            "signature": self._sign(self.domains.providers.digest(SetIdentity(box_key, evidence, issued_at))),
        }

    def sign_request_capacity(self, capacity: int, issued_at: int) -> RequestBody:
        signature = self._sign(self.domains.providers.digest(RequestCapacity(capacity, issued_at)))
        return {"op": "request_capacity", "n": capacity, "issued_at": issued_at, "signature": signature}

    def sign_asks(self, provider_id: int, signed_at: int, quotes: Sequence[Ask]) -> RequestBody:
        snapshot = AskSnapshot(provider_id, signed_at, tuple(quotes))
        return {
            "snapshot": {
                "provider_id": provider_id,
                "signed_at": signed_at,
                "quotes": [
                    {
                        "model_id": quote.model_id,
                        "sla": quote.sla,
                        "rate_in": str(quote.rate_in),
                        "rate_out": str(quote.rate_out),
                    }
                    for quote in quotes
                ],
            },
            "signature": self._sign(self.domains.asks.digest(snapshot)),
        }

    def sign_release(
        self, job_id: bytes, seed_wrap: bytes, ct_hash: bytes, response_pubkey: bytes, issued_at: int
    ) -> RequestBody:
        message = Release(job_id, seed_wrap, ct_hash, response_pubkey, issued_at)
        return {
            "job_id": hex_of(job_id),
            "seed_wrap": base64_of(seed_wrap),
            "ct_hash": hex_of(ct_hash),
            "response_pubkey": response_pubkey.hex(),
            "issued_at": issued_at,
            "signature": self._sign(self.domains.escrow.digest(message)),
        }

    def _sign(self, digest: bytes) -> str:
        return hex_of(self.wallet.sign(digest))
