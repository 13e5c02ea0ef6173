"""A flag that any task can raise and one task sleeps on."""

import anyio


class Wake:
    """Raised any number of times, it wakes once; raised before the wait, it ends the wait at once."""

    def __init__(self) -> None:
        self._raised = anyio.Event()

    def __call__(self) -> None:
        self._raised.set()

    async def wait(self, seconds: float) -> bool:
        """Until raised, `seconds` at most; lowers the flag. False when the time ran out."""
        with anyio.move_on_after(seconds):
            await self._raised.wait()
        raised = self._raised.is_set()
        self._raised = anyio.Event()
        return raised
