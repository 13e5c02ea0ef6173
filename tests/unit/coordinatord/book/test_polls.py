"""One look of a poll: which state it records, which jobs it leases, and which jobs it returns."""

import attrs
import pytest

from common.refusal import Refused
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.polls import PollAnswer, build_poll
from coordinatord.base.outcomes import SessionRow, Unauthorised
from tests.unit.coordinatord.book.polling import (
    FREE,
    HERE,
    KEY,
    NOTHING,
    RICH,
    US,
    WANTED,
    World,
    held,
    looked,
    of,
    poll_of,
)

pytestmark = pytest.mark.anyio


async def test_poll_records_liveness_and_leases_jobs(world: World) -> None:
    world.leases = [[held(1), held(2, is_new=False)]]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.jobs] == [1, 2]
    assert (leased.snapshot, leased.offers) == (HERE, None)
    assert world.told("live") == [(KEY, 2)]
    assert world.told("lease") == [(KEY, 2, WANTED, 15_000)]


async def test_poll_for_which_there_is_nothing_leases_nothing(world: World) -> None:
    world.outlooks = [NOTHING]
    assert await looked(world) == PollAnswer(HERE, [])
    assert (world.told("live"), world.told("lease")) == ([(KEY, 2)], [])


async def test_unknown_model_is_refused_before_any_write(world: World) -> None:
    world.outlooks = [attrs.evolve(NOTHING, known_model=False)]
    with pytest.raises(Refused, match="id of a model in the catalogue") as refused:
        await looked(world)
    assert refused.value.param == "model"
    assert world.told("live") == []


async def test_filters_are_those_of_the_poll(world: World) -> None:
    wanted = attrs.evolve(WANTED, owner=RICH, min_rate_in=3, min_rate_out=4, posted_before=5)
    await looked(world, wanted=wanted)
    assert world.told("lease") == [(KEY, 2, wanted, 15_000)]


async def test_poll_for_the_jobs_of_a_provider_leases_none(world: World) -> None:
    world.outlooks = [attrs.evolve(FREE, has_offers=True)]
    assert (await looked(world, wanted=attrs.evolve(WANTED, provider_id=4), wants_offers=True)).offers == []
    assert [free for _, free, _, _ in world.told("lease")] == [0]
    assert world.told("offers") == []


async def test_page_has_the_providers_leases(world: World) -> None:
    world.leases = [[held(number) for number in range(1, 7)]]
    found = await of(world).answer(poll_of(2, WANTED, 2, 3))
    assert [row.job_id[0] for row in found.jobs] == [4, 5]


@pytest.mark.parametrize(
    ("wanted", "param", "message"),
    [
        (JobFilter(), "state", "`free` requires `state=Open`; `free` requires `model`"),
        (JobFilter(state="Open"), "model", "`free` requires `model`"),
        (JobFilter(model_id=1), "state", "`free` requires `state=Open`"),
    ],
)
async def test_poll_has_to_be_for_the_open_jobs_of_a_model(wanted: JobFilter, param: str, message: str) -> None:
    with pytest.raises(Refused) as refused:
        build_poll(US, wanted, 1, 10, 0)
    assert (refused.value.param, str(refused.value)) == (param, message)


async def test_session_of_a_client_is_not_enough() -> None:
    refused = Unauthorised("authentication_error", "not_registered", "`free` requires a session with role `provider`")
    assert build_poll(SessionRow(b"\x01" * 20, None), WANTED, 1, 10, 0) == refused


async def test_offers_go_to_polls_with_room_that_request_them(world: World) -> None:
    world.outlooks = [attrs.evolve(FREE, has_offers=True)]
    world.leases, world.offers = [[held(1)]], [["a job"]]
    leased = await looked(world, free=3, wants_offers=True)
    assert (leased.offers, len(leased.jobs)) == (["a job"], 1)
    assert world.told("offers") == [(KEY, 2, WANTED)]
    assert (await looked(world, free=3)).offers is None
    assert len(world.told("offers")) == 1
