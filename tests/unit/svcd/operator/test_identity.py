from pathlib import Path
from typing import Any

import pytest

from common.daemon.process import Fatal
from svcd.config import DaemonConfig
from svcd.operator.identity import MAX_EVIDENCE_BYTES, publish_identity
from tests.support.fakes.market import START, Market
from tests.support.fakes.market_answers import Script, answer, error, instead, unreached
from tests.unit.svcd.stages.running import config_for


def configured(market: Market, directory: Path, **changed: Any) -> DaemonConfig:
    return config_for(market, directory, **changed)


async def test_box_key_is_published_with_its_evidence(tmp_path: Path) -> None:
    market, evidence = Market(lambda: START), tmp_path / "evidence.json"
    evidence.write_bytes(b'{"made": "up"}')
    said = await publish_identity(configured(market, tmp_path, evidence_file=evidence), market.transport)
    published = b'{"made":"up","svc_bundle":{"items":500,"v":1},"svc_tab":{"v":1}}'
    assert market.identities == [(market.box.public.raw, published)]
    assert said.endswith(f"with {len(published)} bytes of evidence")


@pytest.mark.parametrize(
    ("content", "published"),
    [
        (None, b'{"svc_bundle":{"items":500,"v":1},"svc_tab":{"v":1}}'),
        (b"a signed text", b"a signed text"),
        (b"[1]", b"[1]"),
    ],
    ids=["no evidence", "no JSON", "no object"],
)
async def test_announcements_are_added_only_to_an_object(
    content: bytes | None, published: bytes, tmp_path: Path
) -> None:
    market, evidence = Market(lambda: START), None
    if content is not None:
        evidence = tmp_path / "evidence"
        evidence.write_bytes(content)
    await publish_identity(configured(market, tmp_path, evidence_file=evidence), market.transport)
    assert [each for _, each in market.identities] == [published]


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ({"chain": unreached()}, "/evm/chain: ConnectError"),
        ({"session": instead(error(403, "not_registered"))}, "not a registered provider"),
        ({"set_identity": instead(answer(409, {"ok": False, "reason": "StaleOp"}))}, "not published: StaleOp"),
    ],
    ids=["no coordinator", "no provider", "refused"],
)
async def test_identity_that_is_not_published_is_fatal_and_says_why(
    scripts: dict[str, Script], message: str, tmp_path: Path
) -> None:
    market = Market(lambda: START, always=scripts)
    with pytest.raises(Fatal, match=message):
        await publish_identity(configured(market, tmp_path), market.transport)
    assert market.identities == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"x" * (MAX_EVIDENCE_BYTES + 1), "evidence may have at most 32768")],
)
async def test_unpublishable_evidence_is_reported_before_signing(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    market, evidence = Market(lambda: START), tmp_path / "evidence"
    if content is not None:
        evidence.write_bytes(content)
    with pytest.raises(Fatal, match=message):
        await publish_identity(configured(market, tmp_path, evidence_file=evidence), market.transport)
    assert market.calls == []


async def test_without_a_box_key_there_is_nothing_to_publish(tmp_path: Path) -> None:
    market = Market(lambda: START)
    with pytest.raises(Fatal, match="no box key is configured"):
        await publish_identity(configured(market, tmp_path, box=None), market.transport)
