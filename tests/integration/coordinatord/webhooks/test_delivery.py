"""Deliveries to a real receiver: their content, retries and records. Tests shift times in the tables instead of
waiting."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from common.api.events import OUTCOME_BY_EVENT, EventKind
from common.daemon.secrets import Secret
from common.webhooks import read_secret, verify
from coordinatord.api.webhooks import delivery, fanout_sql, turns_sql
from coordinatord.api.webhooks.delivery import RETRY_DELAYS_S, run_deliveries
from coordinatord.api.webhooks.endpoints import SealedSecrets, WebhookBody, WebhookEndpoints
from coordinatord.api.webhooks.fanout import FanOut
from coordinatord.base.clock import system_clock
from coordinatord.chain.indexer.events_sql import take_back_events
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from tests.integration.coordinatord.webhooks.receiver import Got, Receiver, receiving
from tests.support.fakes.funded import FUNDED

OWNER, OTHER = b"\xaa" * 20, b"\xbb" * 20
KEY, NEWER_KEY = Secret("11" * 32), Secret("22" * 32)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


def endpoints(database: Database, *keys: Secret) -> WebhookEndpoints:
    return WebhookEndpoints(database, SealedSecrets(keys or (KEY,)), FUNDED, allow_private=True)


async def added(database: Database, url: str, *events: str, owner: bytes = OWNER) -> str:
    """Add an endpoint. Return its secret."""
    _, secret = await endpoints(database).add(owner, WebhookBody(url=url, events=events))
    return secret


async def append(
    database: Database, *jobs: int, kind: EventKind = EventKind.SETTLED, owner: bytes = OWNER, block: int = 1
) -> list[int]:
    """Append events of this many jobs like the indexer. Return their ids."""
    async with database.connection() as connection, connection.transaction():
        rows = await connection.fetch(
            "insert into events (kind, block_number, block_time, job_id, owner, model_id, provider_id, designated,"
            " state, ended_because) select $2, $6, 1800000000, decode(lpad(to_hex(n), 64, '0'), 'hex'), $3, 1, 2, 2,"
            " $4, $5 from unnest($1::integer[]) n returning id",
            list(jobs),
            int(kind),
            owner,
            *map(int, OUTCOME_BY_EVENT[kind]),
            block,
        )
        await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)
    return [row["id"] for row in rows]


async def append_reset(database: Database) -> int:
    async with database.connection() as connection:
        newest: int = await connection.fetchval(
            "insert into events (kind, block_number, block_time) values (7, 1, 1) returning id"
        )
    return newest


@asynccontextmanager
async def delivering(database: Database, *keys: Secret, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    notices = Notices()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notices.listen, database)
        tasks.start_soon(partial(run_deliveries, database, notices, keys or (KEY,), allow_private=True, tls=tls))
        yield
        tasks.cancel_scope.cancel()


async def until(database: Database, query: str, *arguments: object) -> None:
    with anyio.fail_after(20):
        while not await fetchval(database, query, *arguments):  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.02)


async def fetchval(database: Database, query: str, *arguments: object) -> object:
    async with database.connection() as connection:
        return await connection.fetchval(query, *arguments)


async def pass_time(database: Database, seconds: float) -> None:
    """Move all recorded times back by this many seconds."""
    async with database.connection() as connection:
        await connection.execute(
            "update webhook_messages set due_at = due_at - $1 * interval '1 second'", float(seconds)
        )
        await connection.execute(
            "update webhooks set due_at = due_at - $1 * interval '1 second',"
            " not_before = not_before - $1 * interval '1 second',"
            " failing_since = failing_since - $1 * interval '1 second'",
            float(seconds),
        )
        await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)


def types(got: list[Got]) -> list[str]:
    return [json.loads(each.body)["type"] for each in got]


async def test_only_subscribed_events_are_delivered_signed(database: Database, receiver: Receiver) -> None:
    secret = await added(database, receiver.url, "job.settled")
    async with delivering(database):
        await append(database, 1, owner=OTHER)
        await append(database, 2, kind=EventKind.CLAIMED)
        (event_id,) = await append(database, 3)
        (got,) = await receiver.heard(1)
        await until(database, "select delivered = 1 and waiting = 0 from webhooks")
    assert verify(secret, got.headers, got.body, system_clock()) == got.id
    message = json.loads(got.body)
    assert message["type"] == "job.settled"
    assert message["timestamp"] == "2027-01-15T08:00:00Z"
    assert (message["data"]["id"], message["data"]["event"]) == (str(event_id), "settled")
    assert message["data"]["job_id"] == f"0x{3:064x}"
    assert len(receiver.got) == 1


async def test_reorg_is_reported_to_subscribers_of_the_event(database: Database, receiver: Receiver) -> None:
    await added(database, receiver.url, "job.settled")
    async with delivering(database):
        (event_id,) = await append(database, 1, block=9)
        await receiver.heard(1)
        async with database.connection() as connection:
            await take_back_events(connection, 8)
        got = await receiver.heard(2)
    assert types(got) == ["job.settled", "job.taken_back"]
    assert json.loads(got[1].body)["data"]["taken_back"] == str(event_id)


async def test_log_gap_is_reported_and_delivery_continues(database: Database, receiver: Receiver) -> None:
    await added(database, receiver.url, "job.settled")
    await append(database, 1)
    reset = await append_reset(database)
    await append(database, 2)
    async with delivering(database):
        got = await receiver.heard(2)
        assert types(got) == ["events.reset", "job.settled"]
        assert json.loads(got[0].body)["data"] == {"id": str(reset)}
        async with database.connection() as connection:  # as after a long pause, when old log entries are gone
            await connection.execute("update webhook_position set event_id = -5")
        got = await receiver.heard(3)
    assert types(got)[2] == "events.reset"


async def change_batch(database: Database, batch_id: str, owner: bytes, *changes: str, ago: str = "0 s") -> None:
    """Set the times of these changes of a batch. Create the batch if it does not exist."""
    async with database.connection() as connection, connection.transaction():
        await connection.execute(
            "insert into batches (id, owner, endpoint, input_file_id, completion_window, metadata, request_hash,"
            " expires_at) values ($1, $2, '/v1/responses', 'file', '1h', '{}', '', now()) on conflict do nothing",
            batch_id,
            owner,
        )
        for change in changes:
            await connection.execute(
                f"update batches set {change}_at = clock_timestamp() - $2::text::interval where id = $1",  # noqa: S608
                batch_id,
                ago,
            )


async def test_each_change_of_a_batch_is_reported_once(database: Database) -> None:
    """Changes from more than a day ago, when webhooks were off, get no message. Nor do other owners' changes."""
    await added(database, "https://hooks.example.org")
    written = "select array_agg(convert_from(body, 'utf8')::json #>> '{data,status}' order by id) from webhook_messages"
    await change_batch(database, "batch_a", OWNER, "in_progress", "cancelling")
    await change_batch(database, "batch_b", OWNER, "in_progress", "completed", ago="25 h")
    await change_batch(database, "batch_c", OTHER, "in_progress")
    await FanOut(database).run_round()
    assert await fetchval(database, written) == ["in_progress", "cancelling"]
    await change_batch(database, "batch_a", OWNER, "cancelled")
    for _ in range(2):
        await FanOut(database).run_round()
    assert await fetchval(database, written) == ["in_progress", "cancelling", "cancelled"]
    assert await fetchval(database, "select array_agg(reported order by id) from batches") == [3, 2, 1]


async def test_failed_message_is_retried_with_the_same_id(database: Database, receiver: Receiver) -> None:
    secret = await added(database, receiver.url)
    receiver.status = 500
    await append(database, 1)
    waits = "select extract(epoch from due_at - clock_timestamp())::float8 from webhook_messages where attempts = $1"
    async with delivering(database):
        for attempt, delay in enumerate(RETRY_DELAYS_S, start=1):
            await receiver.heard(attempt)
            await until(database, "select exists (select from webhook_messages where attempts = $1)", attempt)
            due = await fetchval(database, waits, attempt)
            assert isinstance(due, float)
            assert delay - 5 < due <= delay * 1.2
            async with database.connection() as connection:  # another test covers failing for a day
                await connection.execute("update webhooks set failing_since = clock_timestamp()")
            await pass_time(database, max(delay * 1.2, 300))
        await receiver.heard(len(RETRY_DELAYS_S) + 1)
        await until(database, "select dropped = 1 and waiting = 0 from webhooks")
    assert len({got.id for got in receiver.got}) == len({got.body for got in receiver.got}) == 1
    for got in receiver.got:
        verify(secret, got.headers, got.body, system_clock())
    (listed,) = await endpoints(database).list_endpoints(OWNER)
    assert listed.last_status == 500
    assert listed.failing_since is not None


async def test_retry_after_is_respected(database: Database, receiver: Receiver) -> None:
    await added(database, receiver.url)
    receiver.script, receiver.answer_headers = [429], {"retry-after": "7200"}
    await append(database, 1)
    async with delivering(database):
        await until(database, "select failing_since is not null from webhooks")
        assert await fetchval(database, "select not_before > clock_timestamp() + interval '7100 s' from webhooks")
        assert await fetchval(database, "select due_at > clock_timestamp() + interval '7100 s' from webhook_messages")
        await pass_time(database, 7300)
        await receiver.heard(2)
        await until(database, "select failing_since is null and failures = 0 and delivered = 1 from webhooks")


async def test_accepted_message_is_delivered_despite_retry_after(database: Database, receiver: Receiver) -> None:
    await added(database, receiver.url)
    await append(database, 1)
    async with delivering(database):
        receiver.answer_headers = {"retry-after": "Fri, 15 Jan 2027 08:01:00 +99999999999999"}
        await receiver.heard(1)
        await until(database, "select delivered = 1 and waiting = 0 from webhooks")
        receiver.answer_headers = {"retry-after": "7200"}
        await append(database, 2)
        await until(database, "select delivered = 2 and waiting = 0 from webhooks")
        assert await fetchval(database, "select not_before <= clock_timestamp() from webhooks")


async def test_gone_endpoint_is_disabled_at_once(database: Database, receiver: Receiver) -> None:
    await added(database, receiver.url)
    receiver.status = 410
    await append(database, 1, 2)
    async with delivering(database):
        await until(database, "select disabled_because = 'gone' and waiting = 0 from webhooks")
        assert await fetchval(database, "select count(*) from webhook_messages") == 0
        await added(database, receiver.url, owner=OTHER)
        receiver.status = 503
        await append(database, 3, owner=OTHER)
        await until(database, "select failing_since is not null from webhooks where owner = $1", OTHER)
        await pass_time(database, delivery.DISABLE_AFTER_S + 1)
        await until(database, "select disabled_because = 'failing' from webhooks where owner = $1", OTHER)
        came = len(receiver.got)
        await append(database, 4, owner=OTHER)
        await append(database, 5)
        await until(database, "select event_id = (select max(id) from events) from webhook_position")
    assert len(receiver.got) == came
    assert await fetchval(database, "select count(*) from webhook_messages") == 0


async def test_message_of_a_dead_process_is_resent_with_its_id(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await added(database, receiver.url)
    await append(database, 1)

    async def dies(*_: object) -> None:
        await anyio.sleep_forever()

    with monkeypatch.context() as dying:
        dying.setattr(turns_sql, "end_turn", dies)
        async with delivering(database):
            await receiver.heard(1)
    assert await fetchval(database, "select waiting = 1 and delivered = 0 from webhooks")
    async with delivering(database):
        await pass_time(database, 61)  # end the dead process's turn
        await receiver.heard(2)
        await until(database, "select waiting = 0 and delivered = 1 from webhooks")
    assert receiver.got[0].id == receiver.got[1].id
    assert receiver.got[0].body == receiver.got[1].body


async def test_crash_before_saving_the_position_sends_no_duplicate(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await added(database, receiver.url)
    await append(database, 1)

    async def dies(*_: object) -> None:
        raise ConnectionResetError("cut off")

    with monkeypatch.context() as dying:
        dying.setattr(fanout_sql, "move_position", dies)
        with pytest.raises(Exception, match="did not answer"):
            await FanOut(database).run_round()
    assert await fetchval(database, "select count(*) from webhook_messages") == 0
    await FanOut(database).run_round()
    await FanOut(database).run_round()
    assert await fetchval(database, "select count(*) from webhook_messages") == 1


async def test_receivers_that_never_answer_hold_up_nobody_else(database: Database, receiver: Receiver) -> None:
    async with receiving() as slow:
        slow.held = asyncio.Event()
        for n in range(delivery.MAX_OTHER_TURNS + 4):  # more than there are places for such
            await added(database, slow.url, owner=n.to_bytes(20, "big"))
        await added(database, receiver.url)
        async with database.connection() as connection:
            await connection.execute("update webhooks set quick = true where owner = $1", OWNER)
        async with delivering(database):
            for n in range(delivery.MAX_OTHER_TURNS + 4):
                await append(database, n, owner=n.to_bytes(20, "big"))
            await slow.heard(delivery.MAX_OTHER_TURNS)
            await append(database, 99)
            await receiver.heard(1, within=5)
            assert len(slow.got) == delivery.MAX_OTHER_TURNS


async def test_lane_skips_a_webhook_whose_turn_still_runs(database: Database, receiver: Receiver) -> None:
    """In the database the turn is over, but this process is still posting for it."""
    await added(database, receiver.url)
    receiver.held = asyncio.Event()
    async with delivering(database):
        await append(database, 1)
        await receiver.heard(1)
        await append(database, 2)
        await until(database, "select waiting = 2 from webhooks")
        await pass_time(database, 61)
        async with receiving() as other:  # the lane's next round takes this one
            await added(database, other.url, owner=OTHER)
            await append(database, 3, owner=OTHER)
            await other.heard(1)
        assert len(receiver.got) == 1
        receiver.held.set()
        await until(database, "select delivered = 2 and waiting = 0 from webhooks where owner = $1", OWNER)
    assert len(receiver.got) == 2


async def test_at_most_eight_are_posted_at_once_to_one_endpoint(database: Database, receiver: Receiver) -> None:
    await added(database, receiver.url)
    await append(database, *range(150))
    receiver.held = asyncio.Event()
    async with delivering(database):
        await receiver.heard(8)
        receiver.held.set()
        await receiver.heard(150)
        await until(database, "select delivered = 150 and waiting = 0 from webhooks")
    assert receiver.most_at_once == 8
    assert len({got.id for got in receiver.got}) == 150


async def test_overflowing_endpoint_is_notified_once_there_is_room(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout_sql, "MAX_WAITING_MESSAGES", 4)
    await added(database, receiver.url)
    await append(database, *range(6))
    await FanOut(database).run_round()
    assert await fetchval(database, "select waiting = 4 and dropped = 2 and missed from webhooks")
    async with delivering(database):
        await receiver.heard(4)
        await until(database, "select waiting = 0 from webhooks")
        await append(database, 7)
        got = await receiver.heard(6)
    assert sorted(types(got)[4:]) == ["events.reset", "job.settled"]


async def test_two_processes_post_each_message_once(database: Database, receiver: Receiver) -> None:
    for n in range(5):
        await added(database, receiver.url, owner=n.to_bytes(20, "big"))
    async with delivering(database), delivering(database):
        for n in range(5):
            await append(database, *range(40), owner=n.to_bytes(20, "big"))
        await until(database, "select sum(delivered) = 200 from webhooks")
    assert len(receiver.got) == len({got.id for got in receiver.got}) == 200


async def test_secrets_survive_a_new_first_key(database: Database, receiver: Receiver) -> None:
    secret = await added(database, receiver.url)
    stored = await fetchval(database, "select secret from webhooks")
    assert isinstance(stored, bytes)
    assert read_secret(secret) not in stored
    await append(database, 1)
    async with delivering(database, NEWER_KEY):
        await until(database, "select not_before > clock_timestamp() + interval '200 s' from webhooks")
    assert receiver.got == []
    await pass_time(database, 301)
    async with delivering(database, NEWER_KEY, KEY):
        (got,) = await receiver.heard(1)
    verify(secret, got.headers, got.body, system_clock())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Create a self-signed certificate for localhost, with its key next to it."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate


async def test_https_is_verified(database: Database, certificate: Path) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, certificate.with_name("key.pem"))
    async with receiving(tls=served, host="localhost") as receiver:
        await added(database, receiver.url)
        await append(database, 1)
        async with delivering(database):  # no authority vouches for the certificate
            await until(database, "select failing_since is not null and last_status is null from webhooks")
        assert receiver.got == []
        await pass_time(database, 300)
        async with delivering(database, tls=ssl.create_default_context(cafile=str(certificate))):
            (got,) = await receiver.heard(1)
    assert got.headers["host"].startswith("localhost:")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_is_a_failure_and_is_not_followed(database: Database, receiver: Receiver, status: int) -> None:
    async with receiving() as elsewhere:
        receiver.status, receiver.answer_headers = status, {"location": elsewhere.url}
        await added(database, receiver.url)
        await append(database, 1)
        async with delivering(database):
            await until(database, "select last_status = $1 and failing_since is not null from webhooks", status)
        assert elsewhere.got == []
