"""A coordinator, chain, escrow and gateway in memory, as an httpx transport for tests of svcd.

The market enforces the rules that a provider can break (who has a claim, which jobs are settled), checks signatures,
and answers as specified. A test can script the next answers of an op or a route.
"""

import base64
import json
import secrets
from collections import defaultdict
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import attrs
import httpx
import trio

from common import container
from common.address_book import AddressBook, TokenDomain
from common.api.states import JobState
from common.box import PublicKey, SecretKey, seal
from common.cid import cid_of
from common.container import commitment, commitment_of
from common.domains import Domains
from common.envelope import Envelope
from common.key_derivation import data_key
from common.messages.escrow import Release
from common.messages.jobs import Claim, Fail, Order, Settle
from common.messages.payments import job_payment
from common.messages.providers import Ask, AskSnapshot, RequestCapacity, SetIdentity
from common.messages.sessions import SvcSession
from common.quotes import cap, derive_job_id
from common.scalars import base64_of, hex_of
from common.sealed_stream import ContainerHead
from common.secp256k1 import Wallet, recover_address
from common.tab.terms import announcement
from tests.support.fakes.market_answers import Body, Script, answer, error, mined
from tests.support.fakes.streamed import StreamedTransport

URL = "http://coordinator"
GATEWAY = "http://gateway"
MODELS = {"demo/text": 1, "demo/image": 3}
START = 1_800_000_000

BOOK = AddressBook(
    chain_id=31337,
    deploy_block=0,
    job_registry=b"\x01" * 20,
    provider_registry=b"\x02" * 20,
    ask_registry=b"\x03" * 20,
    paytoken=b"\x04" * 20,
    payment_token_decimals=6,
    token_domain=TokenDomain("Dev Dollar", "1"),
)
OPEN, CLAIMED, SETTLED, CANCELLED = map(int, JobState)
_NO_JOBS_YET = {"window_secs": "604800", "settled": "0", "failed": "0", "reclaimed": "0", "median_secs": None}


@attrs.define
class Market:
    """`now` returns Unix seconds. `scripts`: next answers, by name of op or route. `always`: answers until removed."""

    now: Callable[[], float]
    provider: Wallet = attrs.field(factory=lambda: Wallet(b"\x11" * 32))
    owner: Wallet = attrs.field(factory=lambda: Wallet(b"\x22" * 32))
    box: SecretKey = attrs.field(factory=lambda: SecretKey(b"\x33" * 32))
    escrow: SecretKey = attrs.field(factory=lambda: SecretKey(b"\x44" * 32))
    result_key: SecretKey = attrs.field(factory=lambda: SecretKey(b"\x55" * 32))
    models: dict[str, int] = attrs.field(factory=lambda: dict(MODELS))
    provider_id: int = 7
    capacity: int = 1000
    reputation: int = 500
    listed: bool = True
    registered_box: PublicKey | None = None  # when it differs from `box`
    largest_bundle: int | None = None  # maximum in this provider's evidence
    announces_tabs: bool = False
    windows: list[int] | None = attrs.field(factory=lambda: [60, 300, 600, 3600, 86400])
    chain_minds_time: bool = False  # compare times with its own clock, `now`
    rival: bool = False  # another daemon polls as this provider
    behind: float | None = None  # seconds by which the coordinator's clock lags; None: no `date` header
    jobs: dict[str, Body] = attrs.field(factory=dict)
    posting: dict[str, Body] = attrs.field(factory=dict)  # rows that jobs get when their post is mined
    slow_blocks: bool = False  # claims sent with "prefer: respond-async" stay pending until mined or reverted
    under_way: dict[str, trio.Event] = attrs.field(factory=dict)  # by job; later ops of the job wait for it
    pending: dict[str, Body] = attrs.field(factory=dict)  # offers of jobs with a pending post
    content: dict[str, bytes] = attrs.field(factory=dict)
    results: dict[str, bytes] = attrs.field(factory=dict)  # by job
    asks: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)
    floors: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)
    others_asks: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)  # asks of another provider
    endpoints: dict[str, str] = attrs.field(factory=lambda: {"demo/image": "/v1/images/generations"})
    gateway: str | None = GATEWAY
    snapshots: list[int] = attrs.field(factory=list)
    requested: list[int] = attrs.field(factory=list)
    identities: list[tuple[bytes, bytes]] = attrs.field(factory=list)
    sessions: set[str] = attrs.field(factory=set)
    polls: list[dict[str, str]] = attrs.field(factory=list)
    calls: list[str] = attrs.field(factory=list)
    scripts: defaultdict[str, list[Script]] = attrs.field(factory=lambda: defaultdict(list))
    always: dict[str, Script] = attrs.field(factory=dict)
    domains: Domains = attrs.field(factory=lambda: Domains.of(BOOK))

    @property
    def transport(self) -> StreamedTransport:
        return StreamedTransport(self.handle)

    # --- clients ------------------------------------------------------------------------------------------

    def envelope(self, model_input: Body | None = None, **changed: Any) -> Envelope:
        fields: Body = {
            "owner": self.owner.address,
            "model": "demo/text",
            "input": model_input if model_input is not None else {"input": "sealed jobs"},
            "result_key": self.result_key.public,
        }
        return Envelope(**{**fields, **changed})

    def container(self, plaintext: bytes | None = None, recipient: PublicKey | None = None) -> bytes:
        to = recipient if recipient is not None else self.box.public
        content = plaintext if plaintext is not None else self.envelope().encode()
        return container.seal(to, BOOK.chain_id, BOOK.job_registry, self.owner.address, content)

    def post(self, container: bytes | None = None, *, served: bytes | None = None, **changed: Any) -> str:
        """Post a job, designated to this provider by default. `served`: what the gateway serves instead of the
        container."""
        content = container if container is not None else self.container()
        try:
            c = commitment_of(content).c
        except ValueError:
            c = secrets.token_bytes(32)
        job = hex_of(derive_job_id(self.owner.address, c))
        cid = str(cid_of(content))
        self.content[cid] = served if served is not None else content
        row: Body = {
            "job_id": job,
            "owner": hex_of(self.owner.address),
            "c": hex_of(c),
            "model_id": "1",
            "sla_secs": "600",
            "designated": str(self.provider_id),
            "rate_in": "100",
            "rate_out": "200",
            "units_in": "1000",
            "units_out": "1000",
            "expires_at": str(int(self.now()) + 3600),
            "provider_id": "0",
            "claimed_at": "0",
            "completion_tok": "0",
            "posted_block": "1",
            "state": OPEN,
            "ended_because": 0,
            "task_cid": cid,
            "result_cid": None,
        }
        self.jobs[job] = {**row, **changed}
        return job

    def offer(self, job: str, **changed: Any) -> None:
        """Make a posted job pending: the next poll offers it, and its claim opens it."""
        row = self.jobs.pop(job)
        names = ("model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at")
        terms = {name: int(row[name]) for name in names}
        order = Order(c=_bytes(row["c"]), **terms)
        amount = cap(order.rate_in, order.rate_out, order.units_in, order.units_out)
        payment = job_payment(self.owner.address, BOOK.job_registry, amount, order.expires_at, _bytes(job))
        signed = {
            "signature": hex_of(self.owner.sign(self.domains.jobs.digest(order))),
            "auth_sig": hex_of(self.owner.sign(self.domains.token.digest(payment))),
            "amount": str(amount),
            "fee_bps": 0,
            "gas_fee": "0",
        }
        same = {name: row[name] for name in (*names, "job_id", "owner", "c", "task_cid")}
        self.pending[job] = {**same, **signed, **changed}
        self.posting[job] = row

    def mine(self, job: str) -> None:
        """Mine the pending post, then the claim."""
        self.jobs[job] = self.posting.pop(job, None) or self.jobs[job]
        self.claim(job)
        self.under_way.pop(job).set()

    def refuse(self, job: str) -> None:
        """Revert the pending post and claim."""
        del self.posting[job]
        self.under_way.pop(job).set()

    def claim(self, job: str, *, ago: int = 0) -> None:
        """Claim the job like an earlier run of the provider."""
        self.jobs[job] |= {
            "state": CLAIMED,
            "provider_id": str(self.provider_id),
            "claimed_at": str(int(self.now()) - ago),
        }

    def end(self, job: str, because: int) -> None:
        self.jobs[job] |= {"state": SETTLED if because == 1 else CANCELLED, "ended_because": because}

    # --- the transport ------------------------------------------------------------------------------------

    async def handle(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        name = request_name(request)
        self.calls.append(name)
        script = self.scripts[name].pop(0) if self.scripts[name] else self.always.get(name)

        if name in ("claim", "settle", "fail") and "prefer" not in request.headers:
            behind = self.under_way.get(json.loads(request.content)["job_id"])
            if behind is not None:
                self.calls.append(f"{name} behind")
                await behind.wait()

        def perform() -> httpx.Response:
            return self._perform(name, request)

        response = perform() if script is None else await script(perform)
        if self.behind is not None:
            response.headers["date"] = formatdate(self.now() - self.behind, usegmt=True)
        return response

    def _perform(self, name: str, request: httpx.Request) -> httpx.Response:
        if request.url.host == "gateway":
            content = self.content.get(request.url.path.removeprefix("/ipfs/"))
            return httpx.Response(404) if content is None else httpx.Response(200, content=content)
        if name in _SESSION_ROUTES and request.headers.get("authorization", "")[7:] not in self.sessions:
            return error(401, "invalid_session", "authentication_error")
        route = getattr(self, f"_{_ROUTES.get(name, name)}", None)
        if route is None:
            return error(404, None, "not_found")
        return route(request)  # type: ignore[no-any-return]

    # --- routes -------------------------------------------------------------------------------------------

    def _chain(self, _: httpx.Request) -> httpx.Response:
        contracts = {
            name: hex_of(getattr(BOOK, name))
            for name in ("job_registry", "provider_registry", "ask_registry", "paytoken")
        }
        return answer(
            200,
            {
                "chain_id": BOOK.chain_id,
                "contracts": contracts,
                "decimals": 6,
                "token_domain": {"name": BOOK.token_domain.name, "version": BOOK.token_domain.version},
                "gas_price": "1000000000",
                "head_block": "1",
                "block_time_ms": 1000,
                "fee_bps": 250,
                "gas_fee": "2000",
            }
            | ({"windows": self.windows} if self.windows is not None else {})
            | ({"gateway_url": self.gateway} if self.gateway is not None else {}),
        )

    def _market(self, request: httpx.Request) -> httpx.Response:
        """Return the candidates for an order: this provider, if it has an ask and a daemon polls."""
        demand = json.loads(request.content)
        live = self.rival and (demand["model_id"], demand["sla_secs"]) in self.asks
        return answer(402, {"candidates": [{"provider_id": str(self.provider_id)}] if live else []})

    def _nonce(self, _: httpx.Request) -> httpx.Response:
        return answer(200, {"nonce": "ab" * 16, "expires_at": int(self.now()) + 300, "chain_id": BOOK.chain_id})

    def _session(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        digest = self.domains.session.digest(SvcSession(self.provider.address, body["nonce"]))
        if recover_address(digest, _bytes(body["signature"])) != self.provider.address:
            return error(401, "invalid_signature", "authentication_error")
        token = f"svc_sess_{secrets.token_hex(8)}"
        self.sessions.add(token)
        ends = int(self.now()) + 86_400
        return answer(200, {"token": token, "expires_at": ends, "provider_id": self.provider_id})

    def _models(self, request: httpx.Request) -> httpx.Response:
        first = request.url.params.get("offset", "0") == "0"
        rows = [
            {"id": name, "object": "model", "owned_by": "the market"}
            | {
                "svc": {
                    "model_id": str(n),
                    "enabled": True,
                    "params_schema": {"type": "object"},
                    "endpoint": self.endpoints.get(name, "/v1/responses"),
                }
            }
            for name, n in self.models.items()
        ]
        return answer(200, {"object": "list", "data": rows if first else [], "as_of_block": "1"})

    def _providers(self, _: httpx.Request) -> httpx.Response:
        fields: Body = {"provider_id": str(self.provider_id), "operator": hex_of(self.provider.address)}
        fields |= {"capacity": str(self.capacity), "reputation": str(self.reputation), "listed": self.listed}
        fields |= {
            "box_key": hex_of((self.registered_box or self.box.public).raw),
            "evidence": announcement() if self.announces_tabs else None,
            "active_jobs": "0",
        }
        fields |= {"requested": str(self.requested[-1] if self.requested else 0)}
        fields |= {"allow_all_models": True, "allowed_models": [], "as_of_block": "1", "reliability": _NO_JOBS_YET}
        fields |= {} if self.largest_bundle is None else {"largest_bundle": self.largest_bundle}
        return answer(200, fields)

    def _asks(self, request: httpx.Request) -> httpx.Response:
        first = request.url.params.get("offset", "0") == "0"
        rows = [
            {
                "provider_id": str(provider),
                "model_id": str(m),
                "sla": str(s),
                "rate_in": str(i),
                "rate_out": str(o),
                "reliability": _NO_JOBS_YET,
            }
            for provider, asks in ((self.provider_id, self.asks if self.listed else {}), (99, self.others_asks))
            for (m, s), (i, o) in asks.items()
        ]
        return answer(200, {"asks": rows if first else [], "as_of_block": "1"})

    def _publish(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        snapshot = body["snapshot"]
        quotes = tuple(
            Ask(*(int(q[name]) for name in ("model_id", "sla", "rate_in", "rate_out"))) for q in snapshot["quotes"]
        )
        signed = AskSnapshot(self.provider_id, snapshot["signed_at"], quotes)
        if recover_address(self.domains.asks.digest(signed), _bytes(body["signature"])) != self.provider.address:
            return error(403, "invalid_signature", "invalid_op_signature")
        pairs = [(quote.model_id, quote.sla) for quote in quotes]
        if snapshot["signed_at"] > self.now() + 3600 or pairs != sorted(set(pairs)):
            return error(400, None)
        if self.snapshots and snapshot["signed_at"] <= self.snapshots[-1]:
            return error(409, "stale_snapshot")
        self.snapshots.append(snapshot["signed_at"])
        for ask in quotes:
            self.asks[ask.model_id, ask.sla] = (ask.rate_in, ask.rate_out)
            if not ask.rate_in and not ask.rate_out:
                del self.asks[ask.model_id, ask.sla]
        told = {"provider_id": str(self.provider_id), "signed_at": str(snapshot["signed_at"])}
        return answer(200, told | {"published": True, "tx_hash": "0x" + "ab" * 32})

    def _poll(self, request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        self.polls.append(query)
        rows = [row for row in self.jobs.values() if row["state"] == OPEN and row["model_id"] == query["model"]]
        told: Body = {"jobs": rows[: int(query["free"])], "as_of_block": "1"}
        if query.get("pending") == "1":
            offers = [offer for offer in self.pending.values() if offer["model_id"] == query["model"]]
            told["pending"] = offers[: max(0, int(query["free"]) - len(rows))]
            for offer in told["pending"]:
                del self.pending[offer["job_id"]]
        return answer(200, told)

    def _claimed(self, request: httpx.Request) -> httpx.Response:
        first = request.url.params.get("offset", "0") == "0"
        rows = [self._told(row) for row in self.jobs.values() if row["state"] == CLAIMED] if first else []
        return answer(200, {"jobs": rows, "as_of_block": "1"})

    def _ended(self, request: httpx.Request) -> httpx.Response:
        first = request.url.params.get("offset", "0") == "0"
        state = {"Settled": SETTLED, "Cancelled": CANCELLED}[request.url.params["state"]]
        rows = [self._told(row) for row in self.jobs.values() if row["state"] == state] if first else []
        return answer(200, {"jobs": rows, "as_of_block": "1"})

    def _told(self, row: Body) -> Body:
        """Add the times that follow from the row's state."""
        if row["state"] == CLAIMED:
            return row | {"reclaimable_at": str(int(row["claimed_at"]) + int(row["sla_secs"]) + 1)}
        return row | {"ended_at": str(int(self.now()))} if row["state"] in (SETTLED, CANCELLED) else row

    def _floors(self, request: httpx.Request) -> httpx.Response:
        first = request.url.params.get("offset", "0") == "0"
        rows = [
            {"model_id": str(m), "sla": str(s), "rate_in": str(i), "rate_out": str(o)}
            for (m, s), (i, o) in (self.asks | self.floors).items()
        ]
        return answer(200, {"floors": rows if first else [], "as_of_block": "1"})

    def _job(self, request: httpx.Request) -> httpx.Response:
        row = self.jobs.get(request.url.path.removeprefix("/evm/jobs/"))
        return (
            answer(200, {**self._told(row), "as_of_block": "1"}) if row is not None else error(404, None, "not_found")
        )

    def _claim(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if abs(body["issued_at"] - self.now()) > 600 and self.chain_minds_time:
            return _refused("StaleOp")
        if not self._signed(body, Claim(_bytes(body["job_id"]), body["issued_at"])):
            return error(403, None, "invalid_op_signature")
        if self.slow_blocks and request.headers.get("prefer") == "respond-async":
            self.under_way[body["job_id"]] = trio.Event()
            steps = [{"op": "post", "rests_on": "broadcast"}, {"op": "claim", "rests_on": "stored"}]
            told = {"job_id": body["job_id"], "status": "in_progress", "provisional": True, "steps": steps}
            return answer(202, told | {"block": "1"})
        if (row := self.posting.pop(body["job_id"], None)) is not None:
            self.jobs[body["job_id"]] = row
        if (row := self.jobs.get(body["job_id"])) is None:
            return _refused("UnknownJob")
        if row["state"] != OPEN:
            return _refused("NotOpen")
        self.claim(body["job_id"])
        return mined()

    def _settle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if not self._signed(body, Settle(_bytes(body["job_id"]), body["completion_tok"], body["issued_at"])):
            return error(403, None, "invalid_op_signature")
        if (row := self.jobs.get(body["job_id"])) is None:
            return _refused("UnknownJob")
        if row["state"] != CLAIMED:
            return _refused("NotClaimed")
        if self.now() > int(row["claimed_at"]) + int(row["sla_secs"]):
            return _refused("SlaExpired")
        if "result_cid" in body and body["result_cid"] not in self.content:
            return error(400, "unknown_result")
        self.results[body["job_id"]] = (
            self.content[body["result_cid"]] if "result_cid" in body else _base64(body["result"])
        )
        cid = str(cid_of(self.results[body["job_id"]]))
        row |= {"completion_tok": str(body["completion_tok"]), "result_cid": cid}
        self.end(body["job_id"], 1)
        return mined(result_cid=cid)

    def _fail(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if not self._signed(body, Fail(_bytes(body["job_id"]), body["issued_at"])):
            return error(403, None, "invalid_op_signature")
        if (row := self.jobs.get(body["job_id"])) is None:
            return _refused("UnknownJob")
        if row["state"] != CLAIMED:
            return _refused("NotClaimed")
        self.end(body["job_id"], 3)
        return mined()

    def _set_identity(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        message = SetIdentity(_bytes(body["box_key"]), _bytes(body["evidence"]), body["issued_at"])
        if recover_address(self.domains.providers.digest(message), _bytes(body["signature"])) != self.provider.address:
            return error(403, None, "invalid_op_signature")
        self.identities.append((message.box_key, message.evidence))
        return mined()

    def _readyz(self, _: httpx.Request) -> httpx.Response:
        return answer(200, {"ready": True, "reason": "ready", "cursor": "1", "head_block": "1", "lag": "0"})

    def _request_capacity(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        digest = self.domains.providers.digest(RequestCapacity(body["n"], body["issued_at"]))
        if recover_address(digest, _bytes(body["signature"])) != self.provider.address:
            return error(403, None, "invalid_op_signature")
        self.requested.append(body["n"])
        self.capacity = body["n"] // 2
        return mined()

    def _files(self, request: httpx.Request) -> httpx.Response:
        head, _, rest = request.content.partition(b'name="file"')
        assert b'name="purpose"\r\n\r\nresult' in head  # the purpose must precede the file
        content = rest.partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]
        cid = str(cid_of(content))
        self.content[cid] = content
        fields: Body = {"id": "file-1", "object": "file", "bytes": len(content), "created_at": int(self.now())}
        fields |= {"expires_at": int(self.now()) + 86_400, "filename": "result", "purpose": "result"}
        return answer(200, fields | {"status": "uploaded", "svc": {"cid": cid, "lines": 0}})

    def _release(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if (row := self.jobs.get(body["job_id"])) is None:
            return error(404, "no_claim", "not_found")
        if row["state"] != CLAIMED:
            return error(409, "not_claimed")
        wrap, response_key = _base64(body["seed_wrap"]), bytes.fromhex(body["response_pubkey"])
        message = Release(_bytes(body["job_id"]), wrap, _bytes(body["ct_hash"]), response_key, body["issued_at"])
        if recover_address(self.domains.escrow.digest(message), _bytes(body["signature"])) != self.provider.address:
            return error(403, "wrong_wallet", "authentication_error")
        if commitment(wrap, _bytes(body["ct_hash"])) != _bytes(row["c"]):
            return error(400, "wrap_mismatch")
        try:
            seed = ContainerHead(wrap).open_seed(self.escrow)
        except ValueError:
            return error(400, "unseal_failed")
        dek = data_key(seed, BOOK.chain_id, BOOK.job_registry, _bytes(row["owner"]))
        return answer(200, {"dek_sealed": base64_of(seal(PublicKey(response_key), dek))})

    def _signed(self, body: Body, message: Claim | Settle | Fail) -> bool:
        return recover_address(self.domains.jobs.digest(message), _bytes(body["signature"])) == self.provider.address


_ROUTES = {"asks!": "publish", "jobs": "market"}
_SESSION_ROUTES = {"claim", "settle", "fail", "request_capacity", "set_identity", "poll", "asks!", "files"}


def request_name(request: httpx.Request) -> str:
    """Return the op (`claim`, `settle`, …), `poll`, or the first words of the path."""
    path = request.url.path
    if path == "/evm/ops":
        return str(json.loads(request.content)["op"])
    if path == "/evm/jobs":
        listed = "claimed" if request.url.params.get("state") == "Claimed" else "ended"
        return "poll" if "free" in request.url.params else listed
    if path == "/evm/asks/floors":
        return "floors"
    if path.startswith("/evm/jobs/"):
        return "job"
    if path.startswith("/ipfs/"):
        return "fetch"
    if path == "/release":
        return "release"
    return path.rstrip("/").split("/")[min(2, path.count("/"))] + ("!" if request.method == "PUT" else "")


def _refused(reason: str) -> httpx.Response:
    return answer(409, {"ok": False, "reason": reason})


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
