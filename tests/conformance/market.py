"""Scripted market: a coordinator with escrow, gateway and node in memory, as providers and clients meet it over HTTP.

It follows the rules of the chain and of the book, checks every signature and time against the pages, and records
requests. A script delays, drops or refuses single responses. Every JSON response has an undocumented member, which
readers must ignore.
"""

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs

from common import strict_json
from common.address_book import AddressBook, TokenDomain
from common.api.states import EndedBecause, JobState
from common.box import PublicKey, SecretKey
from common.container import commitment_of, seal
from common.domains import Domains
from common.envelope import Envelope
from common.escrow_evidence import STATIC_EVIDENCE_TYPE, report_data
from common.messages.sessions import SvcSession
from common.quotes import derive_job_id
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from common.secp256k1 import Wallet, recover_address
from tests.conformance.serving import LOST, ServedReply, ServedRequest

Body = dict[str, Any]
MODEL_ID: Final = 1
FEE_BPS: Final = 250
GAS_FEE: Final = 2000
WINDOWS: Final = (300, 3600, 86_400)
UNKNOWN_MEMBER: Final = {"x_of_a_later_version": {"let": "it be"}}


def _address() -> bytes:
    return secrets.token_bytes(20)


@attrs.frozen
class Heard:
    """One request. `name` is the op or the route's first words. `job` is the related job, if any."""

    at: float
    name: str
    job: str | None
    body: Body
    status: int


@attrs.frozen
class Script:
    """One changed response. With `performs`, the request still takes effect."""

    reply: ServedReply
    performs: bool = False
    seconds: float = 0.0
    meanwhile: Callable[[], None] | None = None


def error(status: int, type_: str, code: str | None = None, *, param: str | None = None, **headers: str) -> ServedReply:
    said = {"message": code or type_, "type": type_, "param": param, "code": code}
    retryable = str(status in (429, 503)).lower()
    return ServedReply.json(status, {"error": said, **UNKNOWN_MEMBER}, x_svc_retryable=retryable, **headers)


def refused(reason: str) -> ServedReply:
    return ServedReply.json(409, {"ok": False, "reason": reason}, x_svc_retryable="false")


@attrs.define
class ScriptedMarket:
    """`now` is in Unix seconds. `faults` lists invalid requests by the promise that they break."""

    model: str = "demo/text-small"
    now: Callable[[], float] = time.time
    book: AddressBook = attrs.field(
        factory=lambda: AddressBook(
            31337, 0, _address(), _address(), _address(), _address(), 6, TokenDomain("Dev Dollar", "1")
        )
    )
    owner: Wallet = attrs.field(factory=lambda: Wallet(secrets.token_bytes(32)))
    escrow: SecretKey = attrs.field(factory=SecretKey.generate)
    result_key: SecretKey = attrs.field(factory=SecretKey.generate)
    jobs: dict[str, Body] = attrs.field(factory=dict)
    content: dict[str, bytes] = attrs.field(factory=dict)  # content of the gateway, by CID
    containers: dict[str, bytes] = attrs.field(factory=dict)  # by job
    sessions: dict[str, bytes] = attrs.field(factory=dict)
    nonces: dict[str, bytes] = attrs.field(factory=dict)
    scripts: defaultdict[tuple[str, str | None], list[Script]] = attrs.field(factory=lambda: defaultdict(list))
    heard: list[Heard] = attrs.field(factory=list)
    faults: defaultdict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))
    block: int = 1
    gas_fee: int = GAS_FEE
    domains: Domains = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.domains = Domains.of(self.book)

    # --- setup by the test ----------------------------------------------------------------------------------

    def sealed(self, recipient: PublicKey, plaintext: bytes) -> bytes:
        return seal(recipient, self.book.chain_id, self.book.job_registry, self.owner.address, plaintext)

    def envelope(self, text: str = "conformance", **changed: Any) -> Envelope:
        asked: dict[str, object] = {"input": text, "max_output_tokens": 4096}
        own = {"owner": self.owner.address, "model": self.model, "input": asked, "result_key": self.result_key.public}
        return Envelope(**{**own, **changed})

    def post(self, container: bytes, cid: str, **changed: Any) -> str:
        """Post an open job. The gateway serves `cid` for it."""
        c = commitment_of(container).c
        job = hex_of(derive_job_id(self.owner.address, c))
        self.containers[job] = container
        self.block += 1
        row: Body = {
            "job_id": job,
            "owner": hex_of(self.owner.address),
            "c": hex_of(c),
            "model_id": str(MODEL_ID),
            "sla_secs": "3600",
            "designated": "0",
            "rate_in": "1000000",
            "rate_out": "2000000",
            "units_in": "1000",
            "units_out": "4096",
            "expires_at": str(int(self.now()) + 3600),
            "provider_id": "0",
            "claimed_at": "0",
            "completion_tok": "0",
            "posted_block": str(self.block),
            "state": int(JobState.OPEN),
            "ended_because": int(EndedBecause.NOT_ENDED),
            "task_cid": cid,
            "result_cid": None,
        }
        self.jobs[job] = {**row, **changed}
        return job

    def end(self, job: str, because: EndedBecause) -> None:
        state = JobState.SETTLED if because is EndedBecause.SETTLE else JobState.CANCELLED
        self.jobs[job] |= {"state": int(state), "ended_because": int(because)}

    def script(self, name: str, job: str | None, *scripts: Script) -> None:
        self.scripts[name, job].extend(scripts)

    def heard_of(self, job: str | None, *names: str) -> list[Heard]:
        return [each for each in self.heard if each.job == job and each.name in names]

    # --- answering ----------------------------------------------------------------------------------------

    async def answered(self, name: str, job: str | None, body: Body, perform: Callable[[], ServedReply]) -> ServedReply:
        """Answer by the next script for this name and job, or by `perform`. Record both."""
        queue = self.scripts.get((name, job)) or self.scripts.get((name, None))
        script = queue.pop(0) if queue else None
        at = time.monotonic()
        if script is None:
            reply = perform()
        else:
            performed = perform() if script.performs else None
            if script.meanwhile is not None:
                script.meanwhile()
            if script.seconds:
                await anyio.sleep(script.seconds)
            refusing = performed is not None and performed.status >= 400
            reply = performed if refusing and performed is not None else script.reply
        self.heard.append(Heard(at, name, job, body, reply.status if not reply.lost else 0))
        return reply

    def fault(self, promise: str, what: str) -> None:
        self.faults[promise].append(what)

    def signed_by(self, promise: str, digest: bytes, signature: object) -> bytes | None:
        """Return the signer. Record a fault of `promise` if the signature is malformed."""
        try:
            signer = recover_address(digest, read_hex(signature, 65, "signature"))
        except Refused as refusal:
            self.fault(promise, refusal.message)
            return None
        if signer is None:
            self.fault(promise, "no signature in its one spelling (65 bytes, v 27 or 28, low s)")
        return signer

    # --- public routes --------------------------------------------------------------------------------------

    def public(self, request: ServedRequest) -> ServedReply | None:
        """Return the response of a public route, or None for other routes."""
        path = request.path
        if path.startswith("/ipfs/"):
            content = self.content.get(path.removeprefix("/ipfs/"))
            return ServedReply(404) if content is None else ServedReply(200, content)
        if path == "/healthz":
            return ServedReply.json(200, {"status": "ok"})
        if path == "/readyz":
            ready = {"ready": True, "reason": "ready", "cursor": "1", "head_block": "1", "lag": "0"}
            return ServedReply.json(200, ready)
        if path == "/evm/chain":
            return self.told(self.deployment())
        if path in ("/v1/models", "/evm/models"):
            return self.listed(request, "data", [self.model_row()], object="list")
        if path == f"/v1/models/{self.model}":
            return self.told({**self.model_row(), "as_of_block": str(self.block)})
        if path == "/key":
            evidence = {"type": STATIC_EVIDENCE_TYPE, "report_data": report_data(self.escrow.public).hex()}
            key = {"escrow_public_key": self.escrow.public.raw.hex(), "issued_at": int(self.now())}
            return self.told({**key, "evidence": {**evidence, "debug": False, "release": 1}})
        return None

    def told(self, body: Body, status: int = 200, **headers: str) -> ServedReply:
        return ServedReply.json(status, {**body, **UNKNOWN_MEMBER}, **headers)

    def listed(self, request: ServedRequest, member: str, rows: list[Body], **more: str) -> ServedReply:
        offset = int(request.query.get("offset") or 0)
        page = rows[offset : offset + int(request.query.get("limit") or 100)]
        body = {member: [{**row, **UNKNOWN_MEMBER} for row in page], "as_of_block": str(self.block), **more}
        return self.told(body, x_svc_page_truncated="false")

    def deployment(self) -> Body:
        names = ("job_registry", "provider_registry", "ask_registry", "paytoken")
        return {
            "chain_id": self.book.chain_id,
            "contracts": {name: hex_of(getattr(self.book, name)) for name in names},
            "decimals": self.book.payment_token_decimals,
            "token_domain": {"name": self.book.token_domain.name, "version": self.book.token_domain.version},
            "gas_price": "1000000000",
            "head_block": str(self.block),
            "block_time_ms": 500,
            "fee_bps": FEE_BPS,
            "gas_fee": str(self.gas_fee),
            "windows": list(WINDOWS),
        }

    def model_row(self) -> Body:
        details = {"model_id": str(MODEL_ID), "enabled": True}
        return {"id": self.model, "object": "model", "owned_by": "conformance", "svc": details}

    # --- sessions -----------------------------------------------------------------------------------------

    def nonce(self, request: ServedRequest) -> ServedReply:
        try:
            address = read_hex(request.query.get("address"), 20, "address")
        except Refused as refusal:
            return error(400, "invalid_request_error", param=refusal.param)
        nonce = secrets.token_hex(16)
        self.nonces[nonce] = address
        return self.told({"nonce": nonce, "expires_at": int(self.now()) + 300, "chain_id": self.book.chain_id})

    def sign_in(self, body: Body, role: str, provider_id: int | None) -> ServedReply:
        nonce = str(body.get("nonce"))
        address = self.nonces.pop(nonce, None)
        if address is None:
            self.fault("sign-in", f"nonce {nonce[:40]} was not given out, or is used already")
            return error(400, "invalid_request_error", param="nonce")
        signer = self.signed_by(
            "sign-in", self.domains.session.digest(SvcSession(address, nonce)), body.get("signature")
        )
        if signer != address or str(body.get("address")).lower() != hex_of(address):
            self.fault("sign-in", "SvcSession is not signed by the address that the nonce was given to")
            return error(401, "authentication_error", "invalid_signature")
        if body.get("role", "client") != role:
            self.fault("sign-in", f"role {body.get('role')!r} and not {role!r}")
        token = f"svc_sess_{secrets.token_hex(16)}"
        self.sessions[token] = address
        session = {"token": token, "expires_at": int(self.now()) + 86_400}
        return self.told(session if provider_id is None else {**session, "provider_id": provider_id})

    def session_of(self, request: ServedRequest) -> bytes | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self.sessions.get(token) if scheme.lower() == "bearer" else None


def read_body(request: ServedRequest) -> Body | None:
    """Return the request's JSON object, parsed strictly."""
    try:
        body = strict_json.parse(request.body)
    except Refused:
        return None
    return body if isinstance(body, dict) else None


def lost() -> Script:
    """Send no response, without effect."""
    return Script(LOST)


def lost_after() -> Script:
    """Take effect, but send no response."""
    return Script(LOST, performs=True)


def node_answer(
    request: ServedRequest, chain_id: int, block: int, call: Callable[[bytes, bytes], bytes | None]
) -> ServedReply:
    """Answer one JSON-RPC request of a provider that does not have an id yet."""
    asked = json.loads(request.body)
    method, params = asked.get("method"), asked.get("params") or []
    result: object = None
    if method == "eth_chainId":
        result = hex(chain_id)
    elif method == "eth_blockNumber":
        result = hex(block)
    elif method == "eth_call":
        target = params[0]
        returned = call(bytes.fromhex(target["to"][2:]), bytes.fromhex((target.get("data") or target["input"])[2:]))
        result = None if returned is None else hex_of(returned)
    head = {"jsonrpc": "2.0", "id": asked.get("id")}
    if result is None:
        return ServedReply.json(200, {**head, "error": {"code": -32601, "message": f"{method}: not of this node"}})
    return ServedReply.json(200, {**head, "result": result})
