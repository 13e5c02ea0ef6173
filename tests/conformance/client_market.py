"""Scripted market for a client: quotes, one purchase, a provider that runs it at once, and a gateway.

Each purchase has a separate market, which may have one fault. The client's signatures and seals are checked against the
pages as they arrive.
"""

import json
import re
import secrets
import time
from collections.abc import Callable
from typing import Final

import attrs

from common import quotes
from common.api.limits import MAX_INLINE_BYTES, MAX_ORDER_LIFETIME_S, MAX_SLA_S
from common.api.states import EndedBecause, JobState, job_status
from common.box import PublicKey, SecretKey
from common.cid import cid_of
from common.container import commitment_of, open_with_secret
from common.envelope import Envelope, ResultBody
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.pricing.model_input import modality_of
from common.pricing.units import units_of
from common.quotes import derive_job_id
from common.refusal import Refused
from common.scalars import hex_of, read_base64, read_hex, read_uint
from common.sealed_result import seal_result
from tests.conformance.market import FEE_BPS, GAS_FEE, MODEL_ID, Body, Script, ScriptedMarket, error, read_body
from tests.conformance.serving import ServedReply, ServedRequest

PROVIDER: Final = 7
RATE_IN, RATE_OUT = 100_000, 200_000
_SOON: Final = 0.3
_TX: Final = "0x" + "ab" * 32
_UINTS: Final = {"model_id": 32, "sla_secs": 32, "rate_in": 128, "rate_out": 128, "units_in": 32, "units_out": 32,
                 "designated": 32, "expires_at": 64}  # fmt: skip
Spoil = Callable[["ClientMarket", Body], Body]


@attrs.frozen
class Twist:
    """The fault in one purchase. Each callable takes the honest response and returns the response to send."""

    price_changes: bool = False
    submission: tuple[Script, ...] = ()
    chain: Spoil | None = None
    quote: Spoil | None = None
    posted: Spoil | None = None
    job: Spoil | None = None
    key: Spoil | None = None
    result: Callable[["ClientMarket", str, bytes], bytes] | None = None
    unseen: int = 0  # reads of the job that answer 404, as from a lagging index
    unstored: int = 0  # reads of the result that answer 404
    lasts: float = _SOON  # seconds from the post to the end
    fails: bool = False

    @property
    def is_of_reads(self) -> bool:
        """Return whether reading the job exposes the client to the fault."""
        return self.fails or self.unseen > 0 or self.lasts > _SOON


@attrs.define
class ClientMarket(ScriptedMarket):
    """`secret` is a text that only the opened result contains."""

    twist: Twist = attrs.field(factory=Twist)
    box: SecretKey = attrs.field(factory=SecretKey.generate)
    secret: str = attrs.field(factory=lambda: secrets.token_hex(16))
    text: str = attrs.field(factory=lambda: f"conformance {secrets.token_hex(4)}")
    asked: int = 0  # number of all requests
    submissions: list[Body] = attrs.field(factory=list)
    posted_at: dict[str, float] = attrs.field(factory=dict)
    reads: list[float] = attrs.field(factory=list)
    sealed_results: dict[str, bytes] = attrs.field(factory=dict)
    result_keys: dict[str, PublicKey] = attrs.field(factory=dict)
    met: bool = False  # the client has met the fault
    _result_reads: int = 0

    async def handle(self, request: ServedRequest) -> ServedReply:
        self.asked += 1
        route = f"{request.method} {request.path}"
        if request.path.startswith("/ipfs/"):
            return self._gateway(request)
        if route == "GET /evm/chain":
            return self._twisted(self.twist.chain, self.deployment())
        if route == "GET /key" and self.twist.key is not None:
            return self._twisted(self.twist.key, _fields(self.public(request)))
        if (plain := self.public(request)) is not None:
            return plain
        if found := re.fullmatch(r"GET /(v1|evm)/jobs/(0x[0-9a-fA-F]{64})", route):
            return self._job(found[1], found[2].lower(), request)
        if route in ("GET /evm/providers", f"GET /evm/providers/{PROVIDER}"):
            record = self._record()
            alone = request.path != "/evm/providers"
            return self.told({**record, "as_of_block": "1"}) if alone else self.listed(request, "providers", [record])
        if route == "GET /evm/asks":
            ask = {"provider_id": str(PROVIDER), "model_id": str(MODEL_ID), "sla": "3600"}
            return self.listed(request, "asks", [{**ask, "rate_in": str(RATE_IN), "rate_out": str(RATE_OUT)}])
        if request.method == "GET":  # unknown routes get 404, so clients fall back
            return self.nonce(request) if route == "GET /auth/nonce" else error(404, "not_found")
        if route == "POST /v1/files":
            return error(413, "invalid_request_error", "file_too_large")
        body = read_body(request)
        if body is None:
            self.fault("bodies", f"{route}: no JSON object, read strictly")
            return error(400, "invalid_request_error")
        if route == "POST /auth/session":
            return self.sign_in(body, "client", None)
        if route == "POST /v1/jobs":
            return await self._ordered(body)
        return error(404, "not_found")

    def _twisted(self, spoil: Spoil | None, body: Body, status: int = 200) -> ServedReply:
        return self.told(self._spoiled(spoil, body), status)

    def _spoiled(self, spoil: Spoil | None, body: Body) -> Body:
        if spoil is None:
            return body
        self.met = True
        return spoil(self, body)

    # --- orders -------------------------------------------------------------------------------------------

    async def _ordered(self, body: Body) -> ServedReply:
        if "rate_in" not in body and "rate_out" not in body:
            return self.told({"candidates": [self._candidate()]}, 402, x_svc_retryable="false")
        try:
            order = self._order(body)
        except (Refused, KeyError, TypeError, ValueError) as odd:
            self.fault("orders", f"{type(odd).__name__}: {odd}")
            return error(400, "invalid_request_error")
        if "auth_sig" not in body:
            return self._quoted(order, body, 402)
        self.submissions.append(body)
        self.met |= bool(self.twist.submission)
        return await self.answered("submit", None, body, lambda: self._submitted(order, body))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.script("submit", None, *self.twist.submission)

    def _order(self, body: Body) -> Order:
        """Read an order and check it against the pages."""
        fields = {name: read_uint(body[name], bits, name) for name, bits in _UINTS.items()}
        order = Order(c=read_hex(body["c"], 32, "c"), **fields)
        owner, now = read_hex(body["owner"], 20, "owner"), self.now()
        if read_hex(body["job_id"], 32, "job_id") != derive_job_id(owner, order.c):
            self.fault("orders", "job_id is not keccak256(owner ‖ c)")
        if self.signed_by("orders", self.domains.jobs.digest(order), body.get("signature")) != owner:
            self.fault("orders", "not signed by its owner over these terms, in the domain of GET /evm/chain")
        if not now < order.expires_at <= now + MAX_ORDER_LIFETIME_S + 5:
            self.fault("orders", f"expires_at {order.expires_at - now:.0f} s ahead")
        if not 0 < order.sla_secs <= MAX_SLA_S or order.model_id != MODEL_ID:
            self.fault("orders", f"sla_secs {order.sla_secs}, model_id {order.model_id}")
        return order

    def _quote(self, order: Order, body: Body) -> Body:
        terms = quotes.FeeTerms(FEE_BPS, self.gas_fee)
        parts = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
        deployment = self.deployment()
        domain = {"chainId": self.book.chain_id, "verifyingContract": hex_of(self.book.paytoken)}
        payment = {
            "domain": {**deployment["token_domain"], **domain},
            "to": hex_of(self.book.job_registry),
            "value": str(parts.amount),
            "valid_after": "0",
            "valid_before": str(order.expires_at + 1),
            "nonce": str(body["job_id"]).lower(),
        }
        told = {"cap": str(parts.cap), "fee_bps": FEE_BPS, "fee": str(parts.fee), "gas_fee": str(parts.gas_fee)}
        return {**told, "amount": str(parts.amount), "authorization": payment}

    def _quoted(self, order: Order, body: Body, status: int) -> ServedReply:
        quote = self._quote(order, body)
        quote = self._spoiled(self.twist.quote, quote)
        accepts = [{"scheme": "eip3009", "network": f"eip155:{self.book.chain_id}"}]
        told = {"quote": quote, "candidates": [self._candidate()], "accepts": accepts}
        return self.told(told, status, x_svc_retryable="false")

    def _submitted(self, order: Order, body: Body) -> ServedReply:
        if self.twist.price_changes and self.gas_fee == GAS_FEE:
            self.gas_fee += 500
            self.met = True
            return self._quoted(order, body, 409)
        job = hex_of(read_hex(body["job_id"], 32, "job_id"))
        if job in self.jobs:
            return error(409, "invalid_request_error", "DuplicateJob")
        amount = int(self._quote(order, body)["amount"])
        if read_uint(body.get("amount"), 256, "amount") != amount:
            return self._quoted(order, body, 409)
        owner, raw = read_hex(body["owner"], 20, "owner"), read_hex(job, 32, "job_id")
        payment = job_payment(owner, self.book.job_registry, amount, order.expires_at, raw)
        if self.signed_by("payments", self.domains.token.digest(payment), body["auth_sig"]) != owner:
            self.fault("payments", "auth_sig is not the owner's over this payment")
            return error(400, "invalid_request_error", "invalid_payment_signature")
        try:
            container = read_base64(body.get("container"), MAX_INLINE_BYTES, "container")
            self._take(order, owner, raw, container)
        except Refused as refusal:
            self.fault("containers", f"{refusal.code or refusal.param}: {refusal.message}")
            return error(400, "invalid_request_error", refusal.code)
        posted = {"job_id": job, "task_cid": str(cid_of(container)), "tx_hash": _TX}
        return self._twisted(self.twist.posted, posted, 201)

    def _take(self, order: Order, owner: bytes, job: bytes, container: bytes) -> None:
        """Open the container like its recipient and run it. Refuse a container that does not match this order."""
        if commitment_of(container).c != order.c:
            raise Refused("the container does not reproduce c", code="commitment_mismatch")
        secret = self.escrow if order.designated == 0 else self.box
        envelope = Envelope.parse(
            open_with_secret(secret, self.book.chain_id, self.book.job_registry, owner, container)
        )
        if envelope.owner != owner or envelope.model != self.model:
            self.fault("containers", f"envelope of {hex_of(envelope.owner)} for {envelope.model!r}")
        if envelope.input.get("input") != self.text:
            self.fault("containers", f"input {str(envelope.input)[:80]} and not the text of SVC_INPUT")
        units = units_of(modality_of("/v1/responses", envelope.input), envelope.input)
        if order.units_in != units.units_in:
            self.fault("containers", f"units_in {order.units_in} and not {units.units_in}")
        if order.designated not in (0, PROVIDER):
            self.fault("orders", f"designated to {order.designated}, who is nobody here")
        self._run(order, job, container, envelope.result_key, owner)

    def _run(self, order: Order, job: bytes, container: bytes, result_key: PublicKey, owner: bytes) -> None:
        name = hex_of(job)
        row = {field: str(value) for field, value in attrs.asdict(order).items() if field != "c"}
        started = int(self.now())
        self.block += 1
        own = {"job_id": name, "owner": hex_of(owner), "c": hex_of(order.c), "task_cid": str(cid_of(container))}
        run = {"provider_id": str(PROVIDER), "claimed_at": str(started), "completion_tok": "0", "result_cid": None}
        self.jobs[name] = {**row, **own, **run, "posted_block": str(self.block), "state": 1, "ended_because": 0}
        self.posted_at[name] = time.monotonic()
        body = ResultBody(job, {"text": self.secret}, {"output_tokens": 8})
        self.result_keys[name] = result_key
        sealed = self.seal(result_key, job, body)
        self.sealed_results[name] = sealed if self.twist.result is None else self.twist.result(self, name, sealed)

    def seal(self, result_key: PublicKey, job: bytes, body: ResultBody) -> bytes:
        return seal_result(result_key, self.book.chain_id, self.book.job_registry, job, body.encode())

    # --- reads --------------------------------------------------------------------------------------------

    def _job(self, view: str, job: str, request: ServedRequest) -> ServedReply:
        self.reads.append(time.monotonic())
        self._progress()
        row = self.jobs.get(job)
        self.met |= self.twist.is_of_reads
        if row is None or len(self.reads) <= self.twist.unseen:
            return error(404, "not_found")
        tag = f'"{self.block}"'
        if request.headers.get("if-none-match") == tag:
            return ServedReply(304, headers={"etag": tag})
        body = row if view == "evm" else _followed(row, self.model)
        body = {**body, "as_of_block": str(self.block)}
        return self.told(self._spoiled(self.twist.job, body), etag=tag)

    def _progress(self) -> None:
        for job, at in self.posted_at.items():
            row = self.jobs[job]
            if row["state"] == JobState.CLAIMED and time.monotonic() - at >= self.twist.lasts:
                self.block += 1
                if self.twist.fails:
                    self.end(job, EndedBecause.PROVIDER_FAIL)
                else:
                    cid = str(cid_of(self.sealed_results[job]))
                    row |= {"completion_tok": "8", "result_cid": cid}
                    self.content[cid] = self.sealed_results[job]
                    self.end(job, EndedBecause.SETTLE)

    def _gateway(self, request: ServedRequest) -> ServedReply:
        self._result_reads += 1
        content = self.content.get(request.path.removeprefix("/ipfs/"))
        late = self._result_reads <= self.twist.unstored
        self.met |= late or (content is not None and self.twist.result is not None)
        return ServedReply(404) if content is None or late else ServedReply(200, content)

    def _candidate(self) -> Body:
        rates = {"rate_in": str(RATE_IN), "rate_out": str(RATE_OUT)}
        return {"provider_id": str(PROVIDER), "box_key": hex_of(self.box.public.raw), **rates}

    def _record(self) -> Body:
        own = {"provider_id": str(PROVIDER), "operator": "0x" + "5a" * 20, "box_key": hex_of(self.box.public.raw)}
        told: Body = {
            "evidence": None,
            "listed": True,
            "reputation": "500",
            "allow_all_models": True,
            "allowed_models": [],
        }
        return {**own, **told, "capacity": "8", "active_jobs": "0"}


def _followed(row: Body, model: str) -> Body:
    """Return a job as its owner sees it."""
    status = job_status(row["state"], row["ended_because"])
    left_out = ("c", "claimed_at", "posted_block", "result_cid")
    details = {name: value for name, value in row.items() if name not in left_out}
    head = {"id": row["job_id"], "object": "job", "model": model, "status": status}
    return {**head, "in_progress_at": row["claimed_at"], "result_cid": row["result_cid"], "svc": details}


def _fields(reply: ServedReply | None) -> Body:
    fields: Body = {} if reply is None else json.loads(reply.body)
    return fields
