"""Wait for configured models that are missing from the coordinator's catalogue, and look for them repeatedly."""

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import structlog
import trio

from common.refusal import Refused
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator

log = structlog.get_logger(__name__)

_EVERY: Final = 60.0


@attrs.frozen(slots=True, eq=False)
class Catalogue:
    """`model_ids` (by name) is the daemon's own view, and grows here. `begin` is called with each model that came."""

    coordinator: Coordinator
    configured: Iterable[str]
    model_ids: dict[str, int]
    begin: Callable[[str], None]

    async def run(self) -> None:
        """Returns when every configured model is known."""
        while missing := set(self.configured) - self.model_ids.keys():
            await trio.sleep(_EVERY)
            try:
                known = await self.coordinator.models()
            except (Unavailable, Refused) as error:
                log.warning("catalogue not read", reason=str(error))
                continue
            self.model_ids.update(known)
            for name in sorted(missing & known.keys()):
                log.info("this model came into the catalogue, and is offered", model=name)
                self.begin(name)
