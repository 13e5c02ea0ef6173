"""Reading, opening and checking results, and the keys that results are sealed to."""

import os
from pathlib import Path

import pytest

from common.box import PublicKey, SecretKey
from common.envelope import ResultBody
from common.quotes import CostParts
from common.scalars import hex_of
from common.sealed_result import seal_result
from svc.client import Client
from svc.errors import JobFailed, OrderRefused, ResultUnreadable
from svc.signers import RemoteSigner
from tests.unit.svc.fake_coordinator import JOB_REGISTRY, WALLET, Answer, Dropped, FakeCoordinator, job

RAW = b"\x07" * 32
JOB = hex_of(RAW)
REGISTRY = bytes.fromhex(JOB_REGISTRY[2:])
ROUTE = "GET http://gateway/ipfs/bafyr"
CIPHER = SecretKey(b"\x05" * 32)


def sealed(to: PublicKey, output: object = "out", *, made_for: bytes = RAW, named: bytes = RAW) -> bytes:
    body = ResultBody(named, output, {"output_tokens": 3}).encode()
    return seal_result(to, 31337, REGISTRY, made_for, body)


def settled() -> FakeCoordinator:
    ended = job(JOB, "completed", result_cid="bafyr", completion_tok="3", state=2, ended_because=1)
    return FakeCoordinator({f"GET /v1/jobs/{JOB}": [Answer(200, ended)]})


def reader(coordinator: FakeCoordinator, **options: object) -> Client:
    return coordinator.client(gateways="http://gateway", **options)


async def wallets_key(client: Client) -> PublicKey:
    return (await client._account.result_keys())[0].public


async def test_result_sealed_to_the_wallets_key_opens() -> None:
    coordinator = settled()
    client = reader(coordinator)
    coordinator.tell(ROUTE, Answer(200, sealed(await wallets_key(client))))
    result = await client.open(JOB)
    assert (result.output, result.text) == ("out", "out")
    assert (result.usage, result.job_id) == ({"output_tokens": 3}, JOB)
    # 4 units in at 1, 3 out at 2; the 2.5 % fee rounds down to 0.
    assert (result.cost, result.cost_parts) == (2010, CostParts(provider=10, fee=0, gas_fee=2000))


async def test_cost_is_unknown_where_no_charges_are_reported() -> None:
    coordinator = settled()
    client = reader(coordinator)
    told = job(JOB, "completed", result_cid="bafyr", completion_tok="3", state=2, ended_because=1)
    del told["svc"]["cost"], told["svc"]["cost_parts"]
    coordinator.tell(f"GET /v1/jobs/{JOB}", Answer(200, told))
    coordinator.tell(ROUTE, Answer(200, sealed(await wallets_key(client))))
    assert (await client.open(JOB)).cost is None


async def test_wallets_key_is_the_same_in_every_client() -> None:
    assert await wallets_key(reader(settled())) == await wallets_key(reader(settled()))


@pytest.mark.parametrize("with_wallet", [True, False])
async def test_result_sealed_to_the_cipher_key_opens(with_wallet: bool) -> None:
    coordinator = settled()
    client = reader(coordinator, cipher_key=CIPHER, wallet_key=WALLET if with_wallet else None)
    coordinator.tell(ROUTE, Answer(200, sealed(CIPHER.public)))
    assert await wallets_key(client) == CIPHER.public  # an explicit key is used for new jobs
    assert (await client.open(JOB)).output == "out"


async def test_every_known_key_is_tried() -> None:
    coordinator = settled()
    key = await wallets_key(reader(coordinator))
    coordinator.tell(ROUTE, Answer(200, sealed(key)))
    assert (await reader(coordinator, cipher_key=CIPHER).open(JOB)).output == "out"


async def test_no_key_comes_from_a_nondeterministic_wallet() -> None:
    signer = RemoteSigner(WALLET.address, by_digest=WALLET.sign)
    with pytest.raises(OrderRefused) as refused:
        await wallets_key(reader(settled(), wallet_key=None, signer=signer))
    assert refused.value.param == "SVC_CIPHER_KEY"
    remote = RemoteSigner(WALLET.address, by_digest=WALLET.sign, deterministic=True)
    derived = await wallets_key(reader(settled(), wallet_key=None, signer=remote))
    assert derived == await wallets_key(reader(settled()))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"made_for": b"\x08" * 32}, "undecryptable"),
        ({"named": b"\x08" * 32}, "malformed_result"),
        ({"to": SecretKey(b"\x06" * 32).public}, "unseal_failed"),
    ],
    ids=["another job's", "naming another job", "to another key"],
)
async def test_result_of_another_job_or_for_another_key_is_refused(change: dict[str, object], code: str) -> None:
    coordinator = settled()
    client = reader(coordinator, cipher_key=CIPHER)
    coordinator.tell(ROUTE, Answer(200, sealed(**{"to": CIPHER.public, **change})))  # type: ignore[arg-type] # one of three
    with pytest.raises(ResultUnreadable) as refused:
        await client.open(JOB)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "too_short"), (b"\x01" * 100, "too_short"), (b"\x02" * 200, "bad_version"), (None, "undecryptable")],
    ids=["nothing", "short", "another version", "cut"],
)
async def test_bytes_that_are_no_whole_result_are_refused(content: bytes | None, code: str) -> None:
    coordinator = settled()
    coordinator.tell(ROUTE, Answer(200, sealed(CIPHER.public)[:-1] if content is None else content))
    with pytest.raises(ResultUnreadable) as refused:
        await reader(coordinator, cipher_key=CIPHER).open(JOB)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("status", "because", "code"),
    [
        ("failed", 3, "provider_fail"),
        ("failed", 4, "reclaim"),
        ("cancelled", 2, "cancelled"),
        ("cancelled", 5, "expired"),
    ],
)
async def test_job_without_a_result_says_how_it_ended(status: str, because: int, code: str) -> None:
    ended = job(JOB, status, state=3, ended_because=because)
    coordinator = FakeCoordinator({f"GET /v1/jobs/{JOB}": [Answer(200, ended)]})
    with pytest.raises(JobFailed) as failed:
        await reader(coordinator).open(JOB)
    assert failed.value.code == code


async def test_running_job_has_no_result_yet() -> None:
    coordinator = FakeCoordinator({f"GET /v1/jobs/{JOB}": [Answer(200, job(JOB, "in_progress"))]})
    with pytest.raises(ResultUnreadable) as refused:
        await reader(coordinator).open(JOB)
    assert refused.value.code == "no_result"


async def test_large_result_file_appears_when_complete(tmp_path: Path) -> None:
    coordinator, path = settled(), tmp_path / "result.json"
    whole = sealed(CIPHER.public, "x" * 300_000)
    coordinator.tell(ROUTE, Answer(200, whole[:-1]), Answer(200, whole))
    client = reader(coordinator, cipher_key=CIPHER)
    with pytest.raises(ResultUnreadable):
        await client.save(JOB, path)
    assert os.listdir(tmp_path) == []
    length = await client.save(JOB, path)
    assert ResultBody.parse(path.read_bytes()).output == "x" * 300_000
    assert (path.stat().st_size, path.stat().st_mode & 0o077) == (length, 0)


async def test_result_that_broke_off_is_read_again_from_its_start(tmp_path: Path) -> None:
    coordinator = settled()
    coordinator.tell(ROUTE, Dropped(), Answer(200, sealed(CIPHER.public)))
    assert (await reader(coordinator, cipher_key=CIPHER).open(JOB)).output == "out"
