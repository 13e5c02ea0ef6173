"""Complete submissions, as in lines of batch files, made without a coordinator."""

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from common import quotes
from common.box import PublicKey
from common.container import commitment_of, seal
from common.domains import Domains
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.quotes import FeeTerms, derive_job_id
from common.scalars import base64_of, hex_of
from common.secp256k1 import Wallet

Body = dict[str, Any]


def jsonl(lines: Iterable[Body | bytes]) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


@attrs.frozen
class Submitter:
    """`terms`: the registry's fees."""

    wallet: Wallet
    domains: Domains
    chain_id: int
    registry: bytes
    terms: FeeTerms
    box_key: bytes

    def line(self, payload: bytes = b"payload", **changed: Any) -> Body:
        """Return a paid, complete submission. Changed fee terms are signed; other members are changed after signing."""
        container = seal(PublicKey(self.box_key), self.chain_id, self.registry, self.wallet.address, payload)
        return self.of_container(container, **changed)

    def of_container(self, container: bytes, **changed: Any) -> Body:
        order = self._order(commitment_of(container).c, changed)
        quote = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, self.terms)
        amount = int(changed.pop("amount", quote.amount))
        job = derive_job_id(self.wallet.address, order.c)
        payment = job_payment(self.wallet.address, self.registry, amount, order.expires_at, job)
        return {
            **{field.name: str(getattr(order, field.name)) for field in attrs.fields(Order) if field.name != "c"},
            "c": hex_of(order.c),
            "owner": hex_of(self.wallet.address),
            "job_id": hex_of(job),
            "signature": hex_of(self.wallet.sign(self.domains.jobs.digest(order))),
            "amount": str(amount),
            "auth_sig": hex_of(self.wallet.sign(self.domains.token.digest(payment))),
            "container": base64_of(container),
            **changed,
        }

    def _order(self, c: bytes, changed: Body) -> Order:
        terms: Mapping[str, int] = {
            "model_id": 1,
            "sla_secs": 3600,
            "rate_in": 1_000_000,
            "rate_out": 2_000_000,
            "units_in": 1000,
            "units_out": 1000,
            "designated": 0,
            "expires_at": int(time.time()) + 7200,
        }
        return Order(c=c, **{name: changed.pop(name, value) for name, value in terms.items()})

    def lines(self, count: int, payload_bytes: int = 1) -> list[Body]:
        return [self.line(secrets.token_bytes(payload_bytes)) for _ in range(count)]
