"""Scripted market for a provider: registry record, asks, polls, ops, releases, uploads, and a node's few calls.

The first party that signs in as a provider is the provider under test. Its id is `PROVIDER`.
"""

import re
import secrets
import time
from collections import Counter
from typing import Any, Final

import attrs

from common import abi
from common.api.limits import MAX_INLINE_BYTES, MAX_OP_SKEW_S, MAX_SIGNED_AHEAD_S
from common.api.states import EndedBecause, JobState
from common.box import PublicKey, open_sealed, seal
from common.cid import cid_of
from common.envelope import ResultBody
from common.key_derivation import data_key
from common.messages.escrow import Release
from common.messages.jobs import Claim, Fail, Settle
from common.messages.providers import Ask, AskSnapshot, RequestCapacity, SetIdentity
from common.refusal import Refused
from common.scalars import base64_of, hex_of, read_bare_hex, read_base64, read_hex, read_uint
from common.sealed_result import open_result
from common.sealed_stream import ContainerHead
from tests.conformance.market import FEE_BPS, MODEL_ID, Body, ScriptedMarket, error, node_answer, read_body, refused
from tests.conformance.serving import ServedReply, ServedRequest
from tests.conformance.verdicts import refusal_of

PROVIDER: Final = 7
_CAPACITY: Final = 16
_LEASE: Final = 3.0  # seconds
SHOWN_AGAIN: Final = 4  # polls
_TX: Final = "0x" + "ab" * 32
_JOB_OPS: Final = ("claim", "settle", "fail")
_PROVIDER_ID_OF: Final = abi.selector("providerIdOf(address)")
_CAPACITY_OF: Final = abi.selector("capacityOf(uint32)")
_JOB: Final = abi.selector("job(bytes32)")
_FEES: Final = abi.selector("fees()")
_PROVIDER: Final = abi.selector("provider(uint32)")


@attrs.define
class ProviderMarket(ScriptedMarket):
    """`box_key` is the provider's. The caller passes it, or `set_identity` publishes it."""

    operator: bytes | None = None
    box_key: PublicKey | None = None
    asks: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)
    signed_at: int = 0
    requested: int = 1
    times: dict[str, int] = attrs.field(factory=dict)
    results: dict[str, ResultBody] = attrs.field(factory=dict)  # by job
    uploads: dict[str, bytes] = attrs.field(factory=dict)
    shown_again: dict[str, int] = attrs.field(factory=dict)  # polls that still offer a claimed or ended job
    leases: dict[str, float] = attrs.field(factory=dict)
    offered: Counter[str] = attrs.field(factory=Counter)  # number of leases per job
    most_free: int = 0  # largest number of free slots in a poll

    async def handle(self, request: ServedRequest) -> ServedReply:
        route = f"{request.method} {request.path}"
        if (plain := self.public(request)) is not None:
            return plain
        if route == "POST /rpc":
            return node_answer(request, self.book.chain_id, self.block, self._view)
        if route == "GET /auth/nonce":
            return self.nonce(request)
        if route == "GET /evm/jobs":
            return await self._jobs(request)
        if found := re.fullmatch(r"GET /evm/jobs/(0x[0-9a-f]{64})", route):
            row = self.jobs.get(found[1])
            reply = error(404, "not_found") if row is None else self.told({**row, "as_of_block": str(self.block)})
            return await self.answered("job", found[1], {}, lambda: reply)
        if route == "GET /evm/asks":
            names = ("model_id", "sla", "rate_in", "rate_out")
            asks = [(*pair, *rates) for pair, rates in self.asks.items()]
            rows = [{"provider_id": str(PROVIDER), **dict(zip(names, map(str, ask), strict=True))} for ask in asks]
            return self.listed(request, "asks", rows)
        if route in ("GET /evm/providers", f"GET /evm/providers/{PROVIDER}"):
            record = self._record()
            alone = request.path != "/evm/providers"
            return self.told({**record, "as_of_block": "1"}) if alone else self.listed(request, "providers", [record])
        if request.method == "GET":  # unknown routes get 404
            return error(404, "not_found")
        if route == "POST /v1/files":
            return self._upload(request)
        body = read_body(request)
        if body is None:
            self.fault("bodies", f"{route}: no JSON object, read strictly")
            return error(400, "invalid_request_error")
        return await self._posted(route, body, request)

    async def _posted(self, route: str, body: Body, request: ServedRequest) -> ServedReply:
        if route == "POST /auth/session":
            reply = self.sign_in(body, "provider", PROVIDER)
            if reply.status == 200 and self.operator is None:
                self.operator = read_hex(body["address"], 20, "address")
            return await self.answered("session", None, body, lambda: reply)
        if route == "POST /release":
            return await self.answered("release", _job_of(body), body, lambda: self._refusing(self._release, body))
        if route == "POST /evm/simulate/claim":
            return self.told({"ok": True})
        if route not in ("POST /evm/ops", "PUT /evm/asks"):
            return error(404, "not_found")
        name = "asks" if route == "PUT /evm/asks" else str(body.get("op"))
        ops = {"claim": self._claim, "settle": self._settle, "fail": self._fail, "asks": self._publish}
        perform = {**ops, "set_identity": self._set_identity, "request_capacity": self._request_capacity}.get(name)

        def performed() -> ServedReply:
            if self.session_of(request) is None:
                return error(401, "authentication_error", "invalid_session")
            if perform is None:
                self.fault("bodies", f"op {name!r} is none")
                return error(400, "invalid_request_error", param="op")
            return self._refusing(perform, body)

        return await self.answered(name, _job_of(body) if name in _JOB_OPS else None, body, performed)

    def _refusing(self, perform: Any, body: Body) -> ServedReply:
        """Record a fault for a body that no page describes."""
        try:
            reply: ServedReply = perform(body)
        except (Refused, KeyError, TypeError, ValueError) as odd:
            self.fault("bodies", f"{body.get('op', 'body')}: {type(odd).__name__} {odd}")
            return error(400, "invalid_request_error")
        return reply

    # --- reads --------------------------------------------------------------------------------------------

    def _record(self) -> Body:
        active = sum(row["state"] == JobState.CLAIMED for row in self._held())
        return {
            "provider_id": str(PROVIDER),
            "operator": hex_of(self.operator or bytes(20)),
            "box_key": None if self.box_key is None else hex_of(self.box_key.raw),
            "evidence": None,
            "listed": True,
            "reputation": "500",
            "allow_all_models": True,
            "allowed_models": [],
            "capacity": str(_CAPACITY),
            "requested": str(self.requested),
            "active_jobs": str(active),
        }

    def _held(self) -> list[Body]:
        return [row for row in self.jobs.values() if row["provider_id"] == str(PROVIDER)]

    async def _jobs(self, request: ServedRequest) -> ServedReply:
        query = request.query
        if "free" not in query:
            states = {name: int(s) for name, s in zip(("Open", "Claimed", "Settled"), JobState, strict=False)}
            wanted = states.get(query.get("state", ""))
            rows = [row for row in self.jobs.values() if wanted is None or row["state"] == wanted]
            if "provider" in query:
                rows = [row for row in rows if row["provider_id"] == query["provider"]]
            return self.listed(request, "jobs", rows)
        return await self.answered("poll", None, dict(query), lambda: self._poll(request))

    def _poll(self, request: ServedRequest) -> ServedReply:
        query = request.query
        if self.session_of(request) is None:
            return error(401, "authentication_error", "invalid_session")
        missing = [name for name in ("state", "model") if name not in query]
        if missing or query.get("state") != "Open" or not query["free"].isdecimal():
            self.fault("polls", f"query {query}")
            return error(400, "invalid_request_error", param=(missing or ["state"])[0])
        if query["model"] != str(MODEL_ID):
            return self.listed(request, "jobs", [])
        free = int(query["free"])
        self.most_free = max(self.most_free, free)
        rows = self._leased(free)
        for job, times in list(self.shown_again.items()):
            if self.jobs[job]["state"] != JobState.OPEN and times:
                self.shown_again[job] = times - 1
                rows.append({**self.jobs[job], "state": 0, "provider_id": "0", "claimed_at": "0"})
        return self.listed(request, "jobs", rows)

    def was_shown(self, job: str) -> bool:
        """Return whether enough polls offered the job for its situation."""
        return self.offered[job] > 0 and self.shown_again.get(job) != SHOWN_AGAIN

    def _leased(self, free: int) -> list[Body]:
        """Lease jobs as a coordinator does, but briefly: jobs that a provider rightly ignores must not fill its slots
        for long."""
        now = time.monotonic()
        waiting = {job: row for job, row in self.jobs.items() if row["state"] == JobState.OPEN}
        self.leases = {job: until for job, until in self.leases.items() if job in waiting and until > now}
        others = sorted((job for job in waiting if job not in self.leases), key=lambda job: self.offered[job])
        for job in others[: max(0, free - len(self.leases))]:
            self.leases[job] = now + _LEASE
            self.offered[job] += 1
        return [dict(waiting[job]) for job in self.leases]

    def _view(self, contract: bytes, data: bytes) -> bytes | None:
        if data[:4] == _PROVIDER_ID_OF:
            return abi.uint(PROVIDER)
        if data[:4] == _CAPACITY_OF:
            return abi.uint(_CAPACITY)
        if data[:4] == _JOB and (row := self.jobs.get(hex_of(data[4:36]))) is not None:
            words = (1, row["state"], row["ended_because"], row["provider_id"], row["claimed_at"])
            return b"".join(abi.uint(int(word)) for word in words)
        if data[:4] == _FEES:
            return abi.uint(FEE_BPS) + abi.uint(self.gas_fee)
        if data[:4] == _PROVIDER:
            box_key = bytes(32) if self.box_key is None else self.box_key.raw
            words = (
                1,
                1,
                500,
                self.requested,
                _CAPACITY,
                sum(row["state"] == JobState.CLAIMED for row in self._held()),
                40,
            )
            return (self.operator or bytes(20)).rjust(32, b"\0") + box_key + b"".join(map(abi.uint, words))
        return None

    # --- signed requests ------------------------------------------------------------------------------------

    def _by_operator(self, promise: str, digest: bytes, body: Body) -> ServedReply | None:
        signer = self.signed_by(promise, digest, body.get("signature"))
        if signer == self.operator:
            return None
        if signer is not None:
            self.fault(promise, f"signed by {hex_of(signer)}, or over other values")
        return error(403, "invalid_op_signature")

    def _now_or_stale(self, promise: str, issued_at: int) -> ServedReply | None:
        if abs(issued_at - self.now()) <= MAX_OP_SKEW_S:
            return None
        self.fault(promise, f"issued_at {issued_at}, {round(issued_at - self.now())} s from now")
        return refused("StaleOp")

    def _growing(self, promise: str, issued_at: int) -> ServedReply | None:
        if self.times.get(promise, 0) < issued_at <= self.now() + MAX_SIGNED_AHEAD_S:
            self.times[promise] = issued_at
            return None
        self.fault(promise, f"issued_at {issued_at} after {self.times.get(promise, 0)}")
        return refused("StaleOp")

    def _set_identity(self, body: Body) -> ServedReply:
        key, at = PublicKey(read_hex(body["box_key"], 32, "box_key")), read_uint(body["issued_at"], 64, "issued_at")
        evidence = bytes.fromhex(str(body["evidence"]).removeprefix("0x"))
        digest = self.domains.providers.digest(SetIdentity(key.raw, evidence, at))
        if bad := self._by_operator("set_identity", digest, body) or self._growing("set_identity", at):
            return bad
        self.box_key = key
        return self._mined()

    def _request_capacity(self, body: Body) -> ServedReply:
        n, at = read_uint(body["n"], 32, "n"), read_uint(body["issued_at"], 64, "issued_at")
        digest = self.domains.providers.digest(RequestCapacity(n, at))
        return (
            self._by_operator("request_capacity", digest, body)
            or self._growing("request_capacity", at)
            or self._capacity_requested(n)
        )

    def _capacity_requested(self, n: int) -> ServedReply:
        self.requested = n
        return self._mined()

    def _publish(self, body: Body) -> ServedReply:
        snapshot = body["snapshot"]
        widths = {"model_id": 32, "sla": 32, "rate_in": 128, "rate_out": 128}
        asks = tuple(Ask(*(read_uint(q[n], bits, n) for n, bits in widths.items())) for q in snapshot["quotes"])
        at = read_uint(snapshot["signed_at"], 64, "signed_at")
        signed = AskSnapshot(read_uint(snapshot["provider_id"], 32, "provider_id"), at, asks)
        if bad := self._by_operator("asks", self.domains.asks.digest(signed), body):
            return bad
        if signed.provider_id != PROVIDER:
            self.fault("asks", f"provider_id {signed.provider_id}")
            return error(403, "invalid_request_error", "provider_mismatch")
        if not self.signed_at < at <= self.now() + MAX_SIGNED_AHEAD_S:
            self.fault("asks", f"signed_at {at} after {self.signed_at}")
            return error(409, "invalid_request_error", "stale_snapshot")
        self.signed_at = at
        for ask in asks:
            self.asks[ask.model_id, ask.sla] = (ask.rate_in, ask.rate_out)
            if not (ask.rate_in or ask.rate_out):
                del self.asks[ask.model_id, ask.sla]
        done = {"provider_id": str(PROVIDER), "signed_at": str(at), "published": True, "tx_hash": _TX}
        return self.told(done)

    # --- jobs ---------------------------------------------------------------------------------------------

    def _claim(self, body: Body) -> ServedReply:
        job, at = read_hex(body["job_id"], 32, "job_id"), read_uint(body["issued_at"], 64, "issued_at")
        row = self.jobs.get(hex_of(job))
        digest = self.domains.jobs.digest(Claim(job, at))
        if bad := self._by_operator("claims", digest, body) or self._now_or_stale("claims", at):
            return bad
        if row is None:
            return refused("UnknownJob")
        if row["state"] != JobState.OPEN or int(row["expires_at"]) < self.now():
            return refused("NotOpen")
        if row["designated"] not in ("0", str(PROVIDER)):
            return refused("NotDesignated")
        row |= {"state": int(JobState.CLAIMED), "provider_id": str(PROVIDER), "claimed_at": str(int(self.now()))}
        return self._mined()

    def _settle(self, body: Body) -> ServedReply:
        job, at = read_hex(body["job_id"], 32, "job_id"), read_uint(body["issued_at"], 64, "issued_at")
        tokens = read_uint(body["completion_tok"], 32, "completion_tok")
        digest = self.domains.jobs.digest(Settle(job, tokens, at))
        if bad := self._by_operator("settles", digest, body) or self._now_or_stale("settles", at):
            return bad
        row = self.jobs.get(hex_of(job))
        if row is None or row["state"] != JobState.CLAIMED:
            return refused("NotClaimed")
        if tokens > int(row["units_out"]):
            self.fault("settles", f"completion_tok {tokens} above units_out {row['units_out']}")
            return refused("TooManyUnits")
        if ("result" in body) == ("result_cid" in body):
            self.fault("settles", "not exactly one of result and result_cid")
            return error(400, "invalid_request_error", "result_required")
        sealed = read_base64(body["result"], MAX_INLINE_BYTES, "result") if "result" in body else None
        sealed = self.uploads.get(str(body.get("result_cid"))) if sealed is None else sealed
        if sealed is None:
            return error(400, "invalid_request_error", "unknown_result")
        self._read_result(hex_of(job), sealed)
        cid = str(cid_of(sealed))
        row |= {"completion_tok": str(tokens), "result_cid": cid}
        self.end(hex_of(job), EndedBecause.SETTLE)
        return self._mined(result_cid=cid)

    def _read_result(self, job: str, sealed: bytes) -> None:
        def read() -> None:
            raw = read_hex(job, 32, "job_id")
            plain = open_result(self.result_key, self.book.chain_id, self.book.job_registry, raw, sealed)
            body = ResultBody.parse(plain)
            if body.job_id != raw:
                raise Refused("the result names another job", "job_id")
            self.results[job] = body

        if (wrong := refusal_of(read)) is not None:
            self.fault("results", f"{job}: {wrong}")

    def _fail(self, body: Body) -> ServedReply:
        job, at = read_hex(body["job_id"], 32, "job_id"), read_uint(body["issued_at"], 64, "issued_at")
        if bad := self._by_operator("fails", self.domains.jobs.digest(Fail(job, at)), body) or self._now_or_stale(
            "fails", at
        ):
            return bad
        row = self.jobs.get(hex_of(job))
        if row is None or row["state"] != JobState.CLAIMED:
            return refused("NotClaimed")
        self.end(hex_of(job), EndedBecause.PROVIDER_FAIL)
        return self._mined()

    def _release(self, body: Body) -> ServedReply:
        job = hex_of(read_hex(body["job_id"], 32, "job_id"))
        wrap = read_base64(body["seed_wrap"], 80, "seed_wrap")
        ct_hash = read_hex(body["ct_hash"], 32, "ct_hash")
        response = PublicKey(read_bare_hex(body["response_pubkey"], 32, "response_pubkey"))
        at = read_uint(body["issued_at"], 64, "issued_at")
        message = Release(read_hex(job, 32, "job_id"), wrap, ct_hash, response.raw, at)
        if self._by_operator("releases", self.domains.escrow.digest(message), body) is not None:
            return error(403, "authentication_error", "wrong_wallet")
        if abs(at - self.now()) > MAX_OP_SKEW_S:
            self.fault("releases", f"issued_at {at}")
            return error(400, "invalid_request_error", "stale_issued_at")
        row = self.jobs.get(job)
        if row is None or row["state"] != JobState.CLAIMED:
            self.fault("releases", "asked for the key of a job that it has not claimed")
            return error(409, "invalid_request_error", "not_claimed")
        seed = open_sealed(self.escrow, ContainerHead(wrap).seed_wrap)
        if seed is None:
            return error(400, "invalid_request_error", "unseal_failed")
        dek = data_key(seed, self.book.chain_id, self.book.job_registry, self.owner.address)
        return self.told({"dek_sealed": base64_of(seal(response, dek))})

    def _upload(self, request: ServedRequest) -> ServedReply:
        """Parse the form in a simple way: the purpose first, then the file."""
        if self.session_of(request) is None:
            return error(401, "authentication_error", "invalid_session")
        found = re.search(r'boundary="?([^";]+)', request.headers.get("content-type", ""))
        parts = request.body.split(b"--" + found[1].encode())[1:-1] if found else []
        values = {_part_name(head): value.removesuffix(b"\r\n") for head, _, value in _cut(parts)}
        if list(values) != ["purpose", "file"] or values["purpose"] != b"result":
            self.fault("uploads", f"parts {list(values)}, purpose {values.get('purpose', b'')[:20]!r}")
            return error(400, "invalid_request_error")
        sealed = values["file"]
        cid = str(cid_of(sealed))
        self.uploads[cid] = sealed
        now = int(self.now())
        told = {"id": f"file-{secrets.token_hex(12)}", "object": "file", "bytes": len(sealed), "created_at": now}
        told |= {"expires_at": now + 300, "filename": "result", "purpose": "result", "status": "uploaded"}
        return self.told({**told, "svc": {"cid": cid, "lines": 0}})

    def _mined(self, **more: str) -> ServedReply:
        self.block += 1
        return self.told({"tx_hash": _TX, "status": "success", "block_number": str(self.block), **more}, 201)


def _job_of(body: Body) -> str | None:
    job = body.get("job_id")
    return job.lower() if isinstance(job, str) else None


def _cut(parts: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    return [part.partition(b"\r\n\r\n") for part in parts]


def _part_name(head: bytes) -> str:
    found = re.search(rb'name="?([^";\r\n]+)', head)
    return found[1].decode("ascii", "replace") if found else ""
