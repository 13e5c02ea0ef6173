import trio

from svcd.journal.slots import Slots

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def test_slots_are_bounded_per_model_and_by_the_grant_over_all() -> None:
    slots = Slots({"x": 2, "y": 2})
    assert (slots.free("x"), slots.free()) == (2, 4)
    slots.set_granted(1)
    assert slots.free("y") == 1
    assert slots.take("x", A) is not None
    assert (slots.free("x"), slots.free("y"), slots.take("y", B)) == (0, 0, None)


def test_job_is_held_once() -> None:
    slots = Slots({"x": 2})
    assert slots.take("x", A) is not None
    assert slots.take("x", A) is None
    assert slots.take_unchecked("x", A) is None


def test_job_that_the_chain_holds_takes_a_slot_that_is_not_there() -> None:
    slots = Slots({"x": 1})
    for job in (A, B):
        assert slots.take_unchecked("gone", job) is not None
    assert (slots.held_slots, slots.free("x")) == (2, 0)


async def test_slot_returned_twice_counts_once() -> None:
    slots = Slots({"x": 2})
    first, second = slots.take("x", A), slots.take("x", B)
    assert first is not None
    assert second is not None
    first.release()
    first.release()
    assert (slots.held_slots, slots.held_for("x")) == (1, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.wait_empty)
        await trio.testing.wait_all_tasks_blocked()
        second.release()
