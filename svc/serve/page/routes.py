"""Routes of the page: its files at `/` and `/web/`, and its own data under `/page/`.

The files hold no data and are public. The page calls the API with its session instead of a key.
"""

import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import anyio
import attrs
import segno

from common.receipt import ProvedFact, verify_receipt
from common.scalars import hex_of, read_hex
from common.web.files import StaticFile, page_files
from svc.chain import facts
from svc.errors import NotFound, SvcError
from svc.receipts import check_blocks
from svc.serve.batch_routes import LocalBatchRoutes
from svc.serve.exchange import EventReply, LocalRequest, WholeReply
from svc.serve.http import LocalRoute, local_route
from svc.serve.ledger import Ledger, SpendEntry, SpendGroup
from svc.serve.page.access import PAGE_HEADER, PageAccess
from svc.serve.page.prices import highest_price
from svc.serve.problems import Problem, invalid_request, problem_from_error
from svc.serve.purchases import AnswerPurchases
from svc.serve.request_ids import split_tab_request_id
from svc.serve.requests import MAX_BODY_BYTES, ROUTES, read_model_name, read_request

JsonObject = dict[str, Any]

_MAX_PAGE_JOBS: Final = 50
_MAX_GROUPS: Final = 20  # rows of the sums by model and by key; further models or keys share one row
_PERIODS_IN_DAYS: Final = frozenset({7, 30, 90, 365})
_DAY_S: Final = 86_400
_CACHE_FACTOR: Final = 20.0  # sums are cached for this many times as long as they took
_OTHERS_ROW_NAME: Final = "(others)"
_BATCH_KIND: Final = "batch"
_NODE_NEEDED_TEXT: Final = "needs a node of the chain: start svc serve with --rpc-url or SVC_RPC_URL"


@attrs.frozen
class PageRoutes:
    """Handlers of the page's routes.

    `read_only_ledger` is a second connection to the ledger, so that sums do not delay purchases. `run_id` changes when
    the server restarts.
    """

    purchases: AnswerPurchases
    batch_routes: LocalBatchRoutes
    access: PageAccess
    read_only_ledger: Ledger
    base_url: str
    run_id: str = attrs.field(factory=lambda: secrets.token_hex(8))
    files: dict[str, StaticFile] = attrs.field(factory=lambda: page_files("svc.serve.page", "static"))
    _sum_lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    _cached_groups: dict[float, tuple[float, list[SpendGroup]]] = attrs.field(factory=dict)

    def routes(self) -> Sequence[LocalRoute]:
        handlers: dict[tuple[str, str], Callable[..., Awaitable[WholeReply]]] = {
            ("GET", "/page/about"): self._about,
            ("GET", "/page/state"): self._state,
            ("GET", "/page/wallet"): self._wallet,
            ("POST", "/page/price"): self._price,
            ("POST", "/page/batch-price"): self._batch_price,
            ("GET", "/page/spend"): self._spend,
            ("GET", "/page/purchases/{id}"): self._purchase,
            ("GET", "/page/jobs"): self._jobs,
            ("GET", "/page/jobs/{id}"): self._job,
            ("GET", "/page/jobs/{id}/receipt"): self._receipt,
            ("GET", "/page/jobs/{id}/proof"): self._proof,
            ("GET", "/page/jobs/{id}/{id}"): self._tab_request,
            ("DELETE", "/page/session"): self._end_session,
        }
        return [
            local_route("GET", "/", self._index, "public"),
            local_route("GET", "/web/{id}", self._file, "public"),
            local_route("POST", "/page/session", _forbid_caching(self._open_session), "public"),
            *(
                local_route(method, path, _forbid_caching(handler), "page")
                for (method, path), handler in handlers.items()
            ),
        ]

    async def _index(self, request: LocalRequest) -> WholeReply:
        return _static_reply(request, self.files["index.html"])

    async def _file(self, request: LocalRequest, name: str) -> WholeReply:
        file = self.files.get(name)
        if file is None:
            raise Problem(404, f"the page has no file {name}", code="unknown_url")
        return _static_reply(request, file)

    async def _open_session(self, request: LocalRequest) -> WholeReply:
        """Exchange a link for a session. The link is in a header, so no body of an unknown caller is read."""
        cookie, token = self.access.open_session(request.headers.get(PAGE_HEADER, ""))
        return WholeReply({"token": token}, headers={"set-cookie": cookie})

    async def _end_session(self, _: LocalRequest) -> WholeReply:
        return WholeReply({}, headers={"set-cookie": self.access.end_session()})

    async def _about(self, request: LocalRequest) -> WholeReply:
        """Return facts that stay the same while the server runs."""
        client = self.purchases.context.client
        token, chain = client.market_verifier.token(), client.market_verifier.chain
        members = {"wallet": client.address, "token": token.name, "decimals": token.decimals, "key": request.key.name}
        return WholeReply({**members, "base_url": self.base_url, "run": self.run_id, "has_node": chain is not None})

    async def _state(self, _: LocalRequest) -> WholeReply:
        """Return the id of this run and the number of ledger changes. The page polls this route."""
        return WholeReply({"run": self.run_id, "changes": self.purchases.context.ledger.written_row_count})

    async def _wallet(self, _: LocalRequest) -> WholeReply:
        client = self.purchases.context.client
        chain, node = await client.chain(), client.market_verifier.chain
        token = read_hex(chain.contracts.paytoken, 20, "paytoken")
        owner = read_hex(client.address, 20, "wallet")
        balance = None if node is None else await facts.read_balance(node, token, owner)
        address = client.address
        return WholeReply(
            {
                "address": address,
                "chain_id": chain.chain_id,
                "paytoken": hex_of(token),
                "balance": None if balance is None else str(balance),
                "qr": _qr_code(f"ethereum:{address}@{chain.chain_id}"),
            }
        )

    async def _price(self, request: LocalRequest) -> WholeReply:
        members = await request.read_json(MAX_BODY_BYTES)
        route, body = members.get("route"), members.get("body")
        if route not in ROUTES or not isinstance(body, dict):
            raise invalid_request(f"route must be one of {', '.join(ROUTES)}, and body its request", "route")
        model, rule = await self.purchases.context.prices.find_model(read_model_name(body), request.key.models)
        return WholeReply(await highest_price(self.purchases.context, read_request(route, body, model, rule)))

    async def _batch_price(self, request: LocalRequest) -> WholeReply:
        """Return the price of a batch that `POST /v1/batches` would start with the same body."""
        batch = await self.batch_routes.read_batch(request)
        return WholeReply(await self.batch_routes.batches.price(request.key, batch))

    async def _spend(self, request: LocalRequest) -> WholeReply:
        days = request.query.get("days", "30")
        if days not in {str(each) for each in _PERIODS_IN_DAYS}:
            raise invalid_request("days must be 7, 30, 90 or 365", "days")
        now = self.purchases.context.clock()
        midnight = now - now % _DAY_S
        groups = await self._read_spend_groups(midnight - (int(days) - 1) * _DAY_S)
        budgets = [
            {
                "key": limit.key,
                "seconds": int(limit.period_s),
                "max_amount": str(limit.max_amount),
                "used": str(used),
            }
            for limit, used in self.purchases.context.budgets.limits_with_usage(now)
        ]
        return WholeReply(
            {
                "until": int(midnight),
                "days": _sum_groups(groups, lambda group: group.day, int(days)),
                "models": _sum_groups(groups, lambda group: group.name, _MAX_GROUPS),
                "keys": _sum_groups(groups, lambda group: group.key, _MAX_GROUPS),
                "budgets": budgets,
            }
        )

    async def _purchase(self, request: LocalRequest, idempotency_key: str) -> WholeReply:
        """Return the progress of the page's running request with this idempotency key."""
        purchase = self.purchases.find_open(request.key.name, idempotency_key)
        if purchase is None:
            return WholeReply({"status": None, "job_id": None})
        return WholeReply({"status": purchase.status, "job_id": purchase.job and purchase.job.job_id})

    async def _read_spend_groups(self, since: float) -> list[SpendGroup]:
        """Return the sums since a time. Sums of a huge ledger take seconds, so they are cached for 20 times as long."""
        async with self._sum_lock:  # one sum at a time, however many pages are open
            known = self._cached_groups.get(since)
            if known is not None and anyio.current_time() < known[0]:
                return known[1]
            started = anyio.current_time()
            groups = await self.read_only_ledger.list_spend_groups(since)
            ended = anyio.current_time()
            self._cached_groups.clear()
            self._cached_groups[since] = (ended + _CACHE_FACTOR * (ended - started), groups)
            return groups

    async def _jobs(self, request: LocalRequest) -> WholeReply:
        rows = await self.read_only_ledger.list_newest_jobs(_MAX_PAGE_JOBS + 1, request.query.get("before"))
        return WholeReply(
            {"jobs": [self._entry_json(row) for row in rows[:_MAX_PAGE_JOBS]], "more": len(rows) > _MAX_PAGE_JOBS}
        )

    async def _job(self, _: LocalRequest, job_id: str) -> WholeReply:
        """Return a job of the ledger with the coordinator's view, which is missing before the post and in an outage."""
        row, market, problem = await self._find_entry(job_id), None, None
        if row.kind != _BATCH_KIND:
            try:
                market = await self._market_view(split_tab_request_id(job_id)[0])
            except NotFound:
                pass
            except SvcError as error:
                problem = problem_from_error(error).message
        return WholeReply({**self._entry_json(row), "market": market, "problem": problem})

    async def _tab_request(self, request: LocalRequest, tab: str, number: str) -> WholeReply:
        """Return a request in a tab, with the coordinator's view of the tab's job."""
        return await self._job(request, f"{tab}/{number}")

    async def _market_view(self, job_id: str) -> JsonObject:
        job = await self.purchases.context.client.jobs.get(job_id)
        details = job.svc
        numbers = ("sla_secs", "rate_in", "rate_out", "units_in", "units_out", "completion_tok", "expires_at")
        return {
            "status": job.status,
            "claimed_at": None if job.in_progress_at is None else str(job.in_progress_at),
            "ended_at": None if details.ended_at is None else str(details.ended_at),
            "ended_because": details.ended_because,
            "provider": details.provider_id,
            "task_cid": details.task_cid,
            "result_cid": job.result_cid,
            **{name: str(getattr(details, name)) for name in numbers},
        }

    async def _receipt(self, _: LocalRequest, job_id: str) -> WholeReply:
        raw = await self._make_receipt(job_id)
        disposition = f'attachment; filename="{job_id}.receipt.json"'
        return WholeReply(raw, headers={"content-type": "application/json", "content-disposition": disposition})

    async def _proof(self, _: LocalRequest, job_id: str) -> WholeReply:
        """Make the receipt, verify it as a third party does, and return its facts."""
        receipt = verify_receipt(await self._make_receipt(job_id))
        chain = self.purchases.context.client.market_verifier.chain
        if chain is None:
            raise Problem(400, f"a receipt {_NODE_NEEDED_TEXT}", code="no_node")
        await check_blocks(chain.new_snapshot(), receipt)
        found = [ProvedFact("job", hex_of(receipt.job_id), "hash of owner and commitment"), *receipt.facts]
        found += [ProvedFact(f"block {block.number}", hex_of(block.hash), "your node") for block in receipt.blocks]
        return WholeReply({"facts": [attrs.asdict(fact) for fact in found]})

    async def _make_receipt(self, job_id: str) -> bytes:
        row = await self._find_entry(job_id)
        if row.kind == _BATCH_KIND:
            raise invalid_request("a batch has no receipt: see the jobs of its output file", "job_id")
        if self.purchases.context.client.market_verifier.chain is None:
            raise Problem(400, f"a receipt {_NODE_NEEDED_TEXT}", code="no_node")
        return await self.purchases.context.client.receipt(job_id)

    async def _find_entry(self, job_id: str) -> SpendEntry:
        row = await self.read_only_ledger.find_job(job_id)
        if row is None:
            raise Problem(404, f"the ledger has no job {job_id}", code="job_not_found", param="job_id")
        return row

    def _entry_json(self, row: SpendEntry) -> JsonObject:
        purchase = self.purchases.find_by_job(row.job_id)
        return {
            **attrs.asdict(row),
            "at": int(row.at),
            "amount": str(row.amount),
            "cost": None if row.cost is None else str(row.cost),
            "status": None if purchase is None else purchase.status,
        }


def _forbid_caching(
    handler: Callable[..., Awaitable[WholeReply]],
) -> Callable[..., Awaitable[WholeReply | EventReply]]:
    """Wrap a handler so that browsers do not store its replies."""

    async def handle(request: LocalRequest, *arguments: str) -> WholeReply:
        reply = await handler(request, *arguments)
        return attrs.evolve(reply, headers={**reply.headers, "cache-control": "no-store"})

    return handle


def _static_reply(request: LocalRequest, file: StaticFile) -> WholeReply:
    headers = {name.decode(): value.decode() for name, value in file.headers}
    if file.etag.decode() == request.headers.get("if-none-match"):
        return WholeReply(b"", 304, headers)
    return WholeReply(file.body, headers=headers)


def _sum_groups(groups: Iterable[SpendGroup], name_of: Callable[[SpendGroup], str], limit: int) -> list[JsonObject]:
    """Return the sums by name, the largest first. Names beyond `limit` are summed up in one row."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
    for group in groups:
        total = totals[name_of(group)]
        for at, value in enumerate((group.paid, group.reserved, group.jobs, group.running, group.free)):
            total[at] += value
    ranked = sorted(totals.items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))
    rest = [total for _, total in ranked[limit:]]
    if rest:
        ranked = [*ranked[:limit], (_OTHERS_ROW_NAME, [sum(each) for each in zip(*rest, strict=True)])]
    return [
        {"name": name, "paid": str(paid), "reserved": str(reserved), "jobs": jobs, "running": running, "free": free}
        for name, (paid, reserved, jobs, running, free) in ranked
    ]


def _qr_code(text: str) -> JsonObject:
    """Return a QR code as its width in modules and the rows as texts of 0 and 1, which the page draws as SVG."""
    matrix = segno.make_qr(text, error="m").matrix
    return {"width": len(matrix), "rows": ["".join(str(module & 1) for module in row) for row in matrix]}
