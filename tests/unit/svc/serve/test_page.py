"""The page of `svc serve`: one-time links, sessions, who is refused, and the routes that only the page uses."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import httpx
import pytest

from common.box import SecretKey
from common.escrow_evidence import STATIC_EVIDENCE_TYPE, report_data
from common.quotes import FeeTerms
from common.refusal import Refused
from common.web.files import CONTENT_SECURITY_POLICY, page_files
from svc.serve.ledger import Ledger, LedgerJob, LedgerPurchase, SpendGroup
from svc.serve.page.access import (
    LINK_LIFETIME_S,
    SESSION_LIFETIME_S,
    PageAccess,
    create_link,
    create_link_to_running_server,
    create_page_key,
    read_or_create_page_secret,
    store_server_url,
)
from svc.serve.problems import Problem
from svc.serve.settings import BudgetSettings, BuyingSettings, ServeSettings
from tests.unit.svc.fake_coordinator import Answer
from tests.unit.svc.serve.market import Caller, Heard, ServedMarket, candidate

OWN: Final = "http://127.0.0.1:8403"
CHAT: Final = "/v1/chat/completions"
HELLO: Final[dict[str, Any]] = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}
FILES: Final = page_files("svc.serve.page", "static")
DAY: Final = 86_400.0


def secret_of(link: str) -> str:
    return link.partition("#/open/")[2]


async def use(caller: Caller, link: str, origin: str = OWN) -> Heard:
    headers = {"origin": origin, "x-svc-page": secret_of(link)}
    return await caller.call("POST", "/page/session", b"", key=None, headers=headers)


async def session(caller: Caller) -> dict[str, str]:
    heard = await use(caller, caller.served.create_link())
    assert heard.status == 200, heard.content
    return {"cookie": heard.headers["set-cookie"].partition(";")[0], "x-svc-page": heard.json["token"]}


async def get(caller: Caller, path: str, headers: Mapping[str, str]) -> Heard:
    return await caller.call("GET", path, b"", key=None, headers=headers)


async def post(caller: Caller, path: str, body: object, headers: Mapping[str, str]) -> Heard:
    return await caller.call("POST", path, json.dumps(body).encode(), key=None, headers={"origin": OWN, **headers})


# --- links and sessions ---------------------------------------------------------------------------------------


@attrs.define
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_link_lasts_five_minutes_and_a_session_twelve_hours() -> None:
    clock = Clock()
    access = PageAccess(b"secret", 8403, clock=clock)
    fresh, old = (secret_of(create_link(b"secret", "http://h/", clock.now)) for _ in range(2))
    clock.now += LINK_LIFETIME_S - 1
    cookie, token = access.open_session(fresh)
    headers = {"cookie": f"other=1; {cookie.partition(';')[0]}", "x-svc-page": token}
    clock.now += 2
    with pytest.raises(Problem, match="too old"):
        access.open_session(old)
    access.check_session(headers)
    clock.now += SESSION_LIFETIME_S
    with pytest.raises(Problem, match="locked"):
        access.check_session(headers)


@pytest.mark.parametrize(
    "change",
    [
        lambda link: f"9{link}",  # another time
        lambda link: link[:-1] + ("A" if link[-1] != "A" else "B"),
        lambda link: link.rpartition(".")[0] + ".",
        lambda link: link.replace(".", "", 1),
        lambda _: create_link(b"another", "", 1_000_000.0).partition("#/open/")[2],
        lambda _: create_link(b"secret", "", 999_000.0).partition("#/open/")[2],  # made before the server started
        lambda _: "é.é.é",
        lambda _: "",
    ],
)
def test_changed_link_opens_nothing(change: Any) -> None:
    access = PageAccess(b"secret", 8403, clock=Clock())
    with pytest.raises(Problem) as refused:
        access.open_session(change(secret_of(create_link(b"secret", "http://h/", 1_000_000.0))))
    assert refused.value.code == "link_not_valid"


async def test_link_opens_one_session_with_a_strict_cookie(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        link = caller.served.create_link()
        first, again = await use(caller, link), await use(caller, link)
    assert link.startswith(f"{OWN}/#/open/")
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SESSION_LIFETIME_S}"} <= {
        part.strip() for part in first.headers["set-cookie"].split(";")
    }
    assert first.headers["cache-control"] == "no-store"
    assert (again.status, again.code) == (401, "link_not_valid")
    assert "set-cookie" not in again.headers


async def test_session_needs_its_cookie_and_its_token(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        one, other = await session(caller), await session(caller)
        mixed = {"cookie": one["cookie"], "x-svc-page": other["x-svc-page"]}
        for headers in ({"cookie": one["cookie"]}, {"x-svc-page": one["x-svc-page"]}, mixed, {}):
            assert (await get(caller, "/page/about", headers)).status == 401
            assert (await get(caller, "/v1/models", headers)).status == 401
        assert (await get(caller, "/page/about", one)).status == 200
        assert (await get(caller, "/v1/models", one)).status == 200


async def test_session_outlives_a_restart_and_a_link_does_not(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers, used = await session(caller), caller.served.create_link()
        await use(caller, used)
        run = (await get(caller, "/page/state", headers)).json["run"]
    async with market.served(tmp_path) as caller:
        assert (await get(caller, "/page/state", headers)).json["run"] != run
        assert (await use(caller, used)).code == "link_not_valid"


async def test_link_of_the_running_server_is_made_from_its_folder(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        assert (await use(caller, create_link_to_running_server(tmp_path))).status == 200
    with pytest.raises(Refused, match="no svc serve is running"):
        create_link_to_running_server(tmp_path)


def test_files_of_the_page_are_the_users_alone(tmp_path: Path) -> None:
    assert read_or_create_page_secret(tmp_path / "state") == read_or_create_page_secret(tmp_path / "state")
    store_server_url(tmp_path / "state", OWN)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()} == {0o600}


# --- attacks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:9", "http://localhost:8403", "null", OWN + "0"]
)
async def test_other_origins_are_refused_with_a_session(market: ServedMarket, origin: str, tmp_path: Path) -> None:
    """A page on another port of this machine is of the same site, so its requests carry the cookie."""
    async with market.served(tmp_path) as caller:
        headers = await session(caller) | {"origin": origin}
        answers = [await get(caller, "/page/about", headers), await post(caller, CHAT, HELLO, headers)]
        answers.append(await use(caller, caller.served.create_link(), origin))
        answers.append(await caller.call("OPTIONS", "/page/price", b"", key=None, headers=headers))
    assert {(heard.status, heard.code) for heard in answers} == {(403, "origin_not_allowed")}
    assert market.posts == []


async def test_rebound_host_name_gets_not_even_the_files(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers = await session(caller) | {"host": "evil.example:8403", "origin": "http://evil.example:8403"}
        for path in ("/", "/web/app.js", "/page/about"):
            assert (await get(caller, path, headers)).code == "host_not_allowed"


async def test_form_of_another_page_is_refused(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers = await session(caller) | {"content-type": "text/plain"}
        for path in ("/page/price", CHAT):
            assert (await post(caller, path, HELLO, headers)).status == 415


async def test_key_of_a_program_opens_no_route_of_the_page(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        assert (await caller.get("/page/jobs")).code == "page_locked"
        own = create_page_key(caller.application.page_access.secret).secret.decode()
        assert (await caller.get("/v1/models", key=own)).code == "invalid_api_key"


async def test_replies_to_the_page_hold_no_secret(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        paths = ("/page/about", "/page/state", "/page/wallet", "/page/spend", "/page/jobs", "/", "/web/app.js")
        replies = [await get(caller, path, headers) for path in paths]
        secrets = [
            caller.keys["default"].encode(),
            caller.application.page_access.secret,
            caller.application.page_key.secret,
        ]
    assert {reply.status for reply in replies} == {200}
    assert not [secret for secret in secrets for reply in replies if secret in reply.content]


async def test_only_the_files_of_the_page_are_served(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        for name in ("nothing.js", "..%2Faccess.py", "__init__.py", "%00"):
            assert (await get(caller, f"/web/{name}", {})).status in (401, 404), name
        for path in ("/", *(f"/web/{name}" for name in FILES)):
            heard = await get(caller, path, {})
            assert (heard.status, heard.headers["content-security-policy"]) == (200, CONTENT_SECURITY_POLICY.decode())
            known = {"if-none-match": heard.headers["etag"]}
            assert (await get(caller, path, known)).status == 304


@pytest.mark.parametrize("name", sorted(FILES))
def test_page_file_obeys_the_content_security_policy(name: str) -> None:
    text = FILES[name].body.decode()
    assert set(re.findall(r"https?://[^\s\"'`/<]+", text)) <= {"http://www.w3.org"}  # SVG's namespace
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=\"", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert set(re.findall(r"from \"\./([\w.]+)\"|(?:src|href)=\"web/([\w.]+)\"", text)) <= {
        pair for known in FILES for pair in ((known, ""), ("", known))
    }


# --- prices, jobs and spending --------------------------------------------------------------------------------


async def test_price_is_the_amount_that_is_posted_and_a_limit(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        priced = (await post(caller, "/page/price", {"route": CHAT, "body": HELLO}, headers)).json
        assert market.posts == []
        assert (priced["provider"], priced["readers"]) == (7, "provider")
        low = headers | {"x-svc-max-amount": str(int(priced["amount"]) - 1)}
        assert (await post(caller, CHAT, HELLO, low)).code == "insufficient_quota"
        assert market.posts == []
        bought = await post(caller, CHAT, HELLO, headers | {"x-svc-max-amount": priced["amount"]})
        assert (bought.status, bought.headers["x-svc-amount"]) == (200, priced["amount"])
        wrong = await post(caller, CHAT, HELLO, headers | {"x-svc-max-amount": "1.5"})
        assert wrong.status == 400
        (entry,) = await caller.served.context.ledger.list_jobs_since(0)
        assert entry.key == "playground"
        assert caller.served.context.prices.load.state_of(7).running_jobs == 0  # asking for a price holds no place


async def uploaded(caller: Caller, headers: Mapping[str, str], *bodies: Mapping[str, object]) -> str:
    lines = [
        {"custom_id": str(n), "method": "POST", "url": CHAT, "body": {**HELLO, **body}} for n, body in enumerate(bodies)
    ]
    form = {"purpose": (None, "batch"), "file": ("lines.jsonl", "".join(json.dumps(line) + "\n" for line in lines))}
    sent = httpx.Request("POST", OWN, files=form)
    more = {"origin": OWN, "content-type": sent.headers["content-type"], **headers}
    heard = await caller.call("POST", "/v1/files", sent.read(), key=None, headers=more)
    assert heard.status == 200, heard.content
    return str(heard.json["id"])


async def test_batch_is_priced_before_it_starts_and_never_costs_more(market: ServedMarket, tmp_path: Path) -> None:
    def room(provider: dict[str, str]) -> None:
        plan = [{"model_id": "2", "lines": "2", "allocation": [{**provider, "lines": "2"}]}]
        market.coordinator.tell("POST /v1/batches", Answer(402, {"plan": plan}))

    session_nonce = {"nonce": "00" * 16, "expires_at": 9_999_999_999, "chain_id": 31337}
    market.coordinator.tell("GET /auth/nonce", Answer(200, session_nonce))
    market.coordinator.tell("POST /auth/session", Answer(200, {"token": "t", "expires_at": 9_999_999_999}))
    room(candidate(7))
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        batch = {"input_file_id": await uploaded(caller, headers, {}, {}), "endpoint": CHAT, "completion_window": "1h"}
        priced = (await post(caller, "/page/batch-price", batch, headers)).json
        assert (priced["lines"], priced["refused"]) == (2, 0)
        assert priced["models"] == [{"name": "demo/chat", "lines": 2}]
        single = (await post(caller, "/page/price", {"route": CHAT, "body": HELLO}, headers)).json
        assert int(priced["amount"]) == 2 * int(single["amount"])
        assert await caller.served.context.ledger.list_jobs_since(0) == []
        room(candidate(7, 2_000_000))
        started = await post(caller, "/v1/batches", batch, headers | {"x-svc-max-amount": priced["amount"]})
        await anyio.sleep(1)
        ended = (await get(caller, f"/v1/batches/{started.json['id']}", headers)).json
        assert (ended["status"], "above its limit" in ended["errors"]["data"][0]["message"]) == ("failed", True)
        assert await caller.served.context.ledger.list_jobs_since(0) == []


async def test_refused_lines_of_a_batch_are_shown_instead_of_a_price(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        file = await uploaded(caller, headers, {}, {"model": "none"}, {"stream": True})
        batch = {"input_file_id": file, "endpoint": CHAT, "completion_window": "1h"}
        priced = (await post(caller, "/page/batch-price", batch, headers)).json
        with_key = await caller.post("/page/batch-price", batch)
    assert (priced["amount"], priced["lines"], priced["refused"]) == (None, 3, 2)
    assert [(error["line"], error["param"]) for error in priced["errors"]] == [(2, "model"), (3, "stream")]
    assert priced["models"] == [{"name": "demo/chat", "lines": 1}]
    assert with_key.status == 401


async def test_price_names_the_operator_as_reader_of_an_open_order(market: ServedMarket, tmp_path: Path) -> None:
    settings = ServeSettings(buying=BuyingSettings(rate_in=5, rate_out=5, open_orders=True))
    public = SecretKey.generate().public
    evidence = {"type": STATIC_EVIDENCE_TYPE, "report_data": report_data(public).hex(), "debug": False, "release": 1}
    key = {"escrow_public_key": public.raw.hex(), "evidence": evidence, "issued_at": 1}
    market.coordinator.tell("GET /key", Answer(200, key))
    async with market.served(tmp_path, settings) as caller:
        priced = await post(caller, "/page/price", {"route": CHAT, "body": HELLO}, await session(caller))
    assert (priced.json["provider"], priced.json["readers"]) == (0, "operator")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"route": "/v1/files", "body": {}}, 400),
        ({"route": CHAT, "body": []}, 400),
        ({"route": CHAT, "body": {"model": "none", "messages": []}}, 404),
        ({"route": CHAT, "body": {"model": "demo/chat"}}, 400),
    ],
)
async def test_request_without_a_price_is_refused(
    market: ServedMarket, asked: dict[str, Any], status: int, tmp_path: Path
) -> None:
    async with market.served(tmp_path) as caller:
        assert (await post(caller, "/page/price", asked, await session(caller))).status == status


async def test_progress_is_read_by_the_idempotency_key(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates = [candidate(7)]
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        assert (await get(caller, "/page/purchases/x1", headers)).json == {"status": None, "job_id": None}
        answer = await post(caller, CHAT, HELLO, headers | {"idempotency-key": "x1"})
        job = (await get(caller, f"/page/jobs/{answer.json['svc']['job_id']}", headers)).json
    assert (job["state"], job["cost"], job["market"]["status"]) == ("done", answer.json["svc"]["cost"], "completed")


async def add_jobs(ledger: Ledger, count: int, *, now: float, cost: int) -> None:
    terms = FeeTerms(0, 0)
    for n in range(count):
        at = now - n // 2  # two jobs at the same time
        purchase = LedgerPurchase(f"p{n}", at, f"key-{n % 2}", "chat", f"model-{n % 30:02}", "m", f"d{n}", None, "done")
        await ledger.add_purchase(purchase, LedgerJob(f"0x{n:064x}", f"p{n}", at, 7, cost, terms))
        if n % 4:
            await ledger.record_job_end(f"0x{n:064x}", "done", cost)


async def test_huge_ledger_is_read_in_pages(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers, context = await session(caller), caller.served.context
        await add_jobs(context.ledger, 120, now=context.clock(), cost=1)
        seen: list[str] = []
        query = ""
        while True:
            page = (await get(caller, f"/page/jobs{query}", headers)).json
            seen += [row["job_id"] for row in page["jobs"]]
            if not page["more"]:
                break
            query = f"?before={seen[-1]}"
        assert (len(seen), len(set(seen))) == (120, 120)
        assert (await get(caller, "/page/jobs?before=none", headers)).json == {"jobs": [], "more": False}


async def test_spending_is_exact_and_groups_the_many(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers, context = await session(caller), caller.served.context
        await add_jobs(context.ledger, 60, now=context.clock(), cost=2**70 + 1)
        await add_jobs_long_ago(context.ledger, context.clock() - 8 * DAY)
        sums = (await get(caller, "/page/spend?days=7", headers)).json
        assert (await get(caller, "/page/spend?days=8", headers)).status == 400
    assert sum(int(row["paid"]) for row in sums["days"]) == 45 * (2**70 + 1)
    assert sum(int(row["reserved"]) for row in sums["days"]) == 15 * (2**70 + 1)
    assert len(sums["models"]) == 21
    assert sums["models"][-1]["name"] == "(others)"
    assert sum(row["jobs"] for row in sums["models"]) == 60
    assert {row["name"]: row["jobs"] for row in sums["keys"]} == {"key-0": 30, "key-1": 30}


async def test_slow_sums_are_kept_for_many_times_as_long(
    market: ServedMarket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began: list[float] = []

    async def sum_slowly(_: Ledger, __: float) -> list[SpendGroup]:
        began.append(anyio.current_time())
        await anyio.sleep(2)
        return []

    monkeypatch.setattr(Ledger, "list_spend_groups", sum_slowly)
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(get, caller, "/page/spend", headers)
        await anyio.sleep(39)
        await get(caller, "/page/spend", headers)
        assert len(began) == 1
        await anyio.sleep(2)
        await get(caller, "/page/spend", headers)
    assert len(began) == 2


async def add_jobs_long_ago(ledger: Ledger, at: float) -> None:
    purchase = LedgerPurchase("old", at, "key-0", "chat", "model", "m", "d", None, "done")
    await ledger.add_purchase(purchase, LedgerJob("0x" + "f" * 64, "old", at, 7, 9, FeeTerms(0, 0)))
    await ledger.record_job_end("0x" + "f" * 64, "done", 9)


async def test_budgets_show_what_is_used(market: ServedMarket, tmp_path: Path) -> None:
    settings = ServeSettings(budget=BudgetSettings(per_hour=10**6, per_day=10**7))
    async with market.served(tmp_path, settings) as caller:
        headers = await session(caller)
        answer = await post(caller, CHAT, HELLO, headers)
        budgets = (await get(caller, "/page/spend", headers)).json["budgets"]
    assert [(each["key"], each["seconds"], each["max_amount"]) for each in budgets] == [
        (None, 3_600, "1000000"),
        (None, 86_400, "10000000"),
    ]
    assert {each["used"] for each in budgets} == {answer.json["svc"]["cost"]}


async def test_receipt_needs_a_job_of_the_ledger_and_a_node(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        headers = await session(caller)
        job = (await post(caller, CHAT, HELLO, headers)).json["svc"]["job_id"]
        for what in ("receipt", "proof"):
            assert (await get(caller, f"/page/jobs/0x{'0' * 64}/{what}", headers)).code == "job_not_found"
            assert (await get(caller, f"/page/jobs/{job}/{what}", headers)).code == "no_node"


async def test_wallet_has_a_qr_code_and_no_balance_without_a_node(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        wallet = (await get(caller, "/page/wallet", await session(caller))).json
    assert wallet["balance"] is None
    assert len(wallet["qr"]["rows"]) == wallet["qr"]["width"] >= 21
    assert all(re.fullmatch(r"[01]+", row) and len(row) == wallet["qr"]["width"] for row in wallet["qr"]["rows"])
