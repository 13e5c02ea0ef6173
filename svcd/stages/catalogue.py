"""Wait for configured models that are missing from the coordinator's catalogue."""

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import structlog
import trio

from common.refusal import Refused
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 60.0


@attrs.frozen(slots=True, eq=False)
class Catalogue:
    """Add each new model to `model_ids`, which the daemon shares, and call `begin` with its name."""

    coordinator: Coordinator
    configured: Iterable[str]
    model_ids: dict[str, int]
    begin: Callable[[str], None]

    async def run(self) -> None:
        """Poll the catalogue until it has every configured model."""
        while missing := set(self.configured) - self.model_ids.keys():
            await trio.sleep(_INTERVAL_S)
            try:
                known = await self.coordinator.models()
            except (Unavailable, Refused) as error:
                log.warning("catalogue not read", reason=str(error))
                continue
            self.model_ids.update(known)
            for name in sorted(missing & known.keys()):
                log.info("model added to catalogue", model=name)
                self.begin(name)
