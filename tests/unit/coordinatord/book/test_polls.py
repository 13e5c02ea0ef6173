"""One look of a poll: what it notes, what it leases, and what it is given."""

import attrs
import pytest

from common.refusal import Refused
from coordinatord.api.book.book_sql import JobFilter
from coordinatord.api.book.leases_sql import START, JobPlace
from coordinatord.api.book.polls import Leased
from coordinatord.base.outcomes import NotSigned, SessionRow
from tests.unit.coordinatord.book.polling import HERE, KEY, NOTHING, RICH, US, WANTED, World, held, looked, of

pytestmark = pytest.mark.anyio


async def test_poll_notes_that_the_provider_lives_and_leases_what_it_may_claim(world: World) -> None:
    world.leases = [[held(1), held(2, is_new=False)]]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.rows] == [1, 2]
    assert (leased.snapshot, leased.pending) == (HERE, None)
    assert world.told("live") == [(KEY, 2)]
    assert world.told("lease") == [([(4, 1, 2, START)], JobFilter(), 15_000, 6)]
    assert world.told("leased") == [(1, [1, 2])]


async def test_hints_go_by_the_index(world: World) -> None:
    of(world)
    assert world.told("hints") == [(True, "of the index")]


async def test_poll_for_which_there_is_nothing_leases_nothing(world: World) -> None:
    world.peeks = [NOTHING]
    assert await looked(world) == Leased(HERE, [])
    assert (world.told("live"), world.told("lease")) == ([(KEY, 2)], [])


async def test_model_that_nobody_knows_is_refused_before_anything_is_noted(world: World) -> None:
    for peek in (None, attrs.evolve(NOTHING, known_model=False)):
        world.peeks = [peek]
        with pytest.raises(Refused, match="not in the catalogue") as refused:
            await looked(world)
        assert refused.value.param == "model"
    assert world.told("live") == []


async def test_where_bids_were_leased_a_moment_ago_no_look_is_taken_first(world: World) -> None:
    world.heads[1] = JobPlace(5, 5)
    await looked(world)
    assert world.told("peek") == []
    assert world.told("lease")[0][0] == [(4, 1, 2, JobPlace(5, 5))]


async def test_filters_are_those_of_the_poll_and_begin_at_the_oldest_job(world: World) -> None:
    world.heads[1] = JobPlace(5, 5)
    given = {"owner": RICH, "min_rate_in": 3, "min_rate_out": 4, "posted_before": 5}
    await looked(world, wanted=attrs.evolve(WANTED, **given))
    assert world.told("lease") == [([(4, 1, 2, START)], JobFilter(**given), 15_000, 6)]
    assert world.told("leased") == []  # what they leave aside is no news for others


async def test_asked_for_the_jobs_of_a_provider_a_poll_leases_none(world: World) -> None:
    await looked(world, wanted=attrs.evolve(WANTED, provider_id=4), pending=True)
    assert world.told("lease")[0][0] == [(4, 1, 0, START)]
    assert world.told("offers")[0][1] == 0


async def test_page_is_of_what_the_provider_holds(world: World) -> None:
    world.leases = [[held(number) for number in range(1, 7)]]
    found = await of(world).poll(US, WANTED, 2, 2, 3)
    assert isinstance(found, Leased)
    assert [row.job_id[0] for row in found.rows] == [4, 5]


@pytest.mark.parametrize(
    ("wanted", "param", "message"),
    [
        (JobFilter(), "state", "free needs state=Open; free needs model"),
        (JobFilter(state="Open"), "model", "free needs model"),
        (JobFilter(model_id=1), "state", "free needs state=Open"),
    ],
)
async def test_poll_has_to_be_for_the_open_jobs_of_a_model(
    world: World, wanted: JobFilter, param: str, message: str
) -> None:
    with pytest.raises(Refused) as refused:
        await of(world).poll(US, wanted, 1, 10, 0)
    assert (refused.value.param, str(refused.value)) == (param, message)


async def test_session_of_a_client_is_not_enough(world: World) -> None:
    client, book = SessionRow(b"\x01" * 20, None), of(world)
    world.log.clear()
    told = await book.poll(client, WANTED, 1, 10, 0)
    also, lasted = await book.poll_and_wait(client, WANTED, 1, 10, 0, seconds=9, caller="us")
    assert told == also == NotSigned("authentication_error", "not_registered", "free needs a provider session")
    assert (lasted, world.log) == (0.0, [])


async def test_offers_are_for_polls_that_ask_and_for_the_room_that_leases_leave(world: World) -> None:
    world.leases, world.offers = [[held(1)]], [(["a job"], False)]
    leased = await looked(world, free=3, pending=True)
    assert (leased.pending, len(leased.rows)) == (["a job"], 1)
    assert world.told("offers") == [(KEY, 2, WANTED)]
    assert (await of(world).poll(US, WANTED, 3, 10, 0, pending=True)).pending is None  # type: ignore[union-attr]
