"""Wake-up flag for one waiting task, and a mailbox that one task empties."""

from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Wake:
    """Flag that any task can raise by calling the object, and that one task waits for.

    Raising the flag several times wakes the task once. If the flag is already raised, the wait ends at once.
    """

    def __init__(self) -> None:
        self._is_raised = anyio.Event()

    def __call__(self) -> None:
        self._is_raised.set()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` until the flag is raised, and lower the flag. Return False on timeout."""
        with anyio.move_on_after(seconds):
            await self._is_raised.wait()
        raised = self._is_raised.is_set()
        self._is_raised = anyio.Event()
        return raised


class Mailbox(Generic[T]):
    """Queue that any task fills, and from which one task takes all items in one step. `put` never waits."""

    def __init__(self, capacity: int) -> None:
        """`put` drops an item if the queue already has `capacity` items."""
        self._capacity = capacity
        self._items: list[T] = []
        self._filled = Wake()

    def put(self, item: T) -> None:
        if len(self._items) < self._capacity:
            self._items.append(item)
            self._filled()

    async def take(self, seconds: float) -> list[T]:
        """Return all queued items, waiting up to `seconds` for the first. Return an empty list on timeout."""
        if not self._items:
            await self._filled.wait(seconds)
        items, self._items = self._items, []
        return items
