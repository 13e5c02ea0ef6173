"""Start to offer configured models when they appear in the coordinator's catalogue."""

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import structlog
import trio

from common.refusal import Refused
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator

log = structlog.get_logger(__name__)

_READ_INTERVAL_S: Final = 60.0


@attrs.frozen(slots=True, eq=False)
class CatalogueWatcher:
    """Watcher of the catalogue. It adds new models to `model_ids`, and starts the configured ones."""

    coordinator: Coordinator
    configured: Iterable[str]
    model_ids: dict[str, int]
    start_model: Callable[[str], None]

    async def run(self) -> None:
        """Poll the catalogue until it has every configured model."""
        while missing := set(self.configured) - self.model_ids.keys():
            await trio.sleep(_READ_INTERVAL_S)
            try:
                known = await self.coordinator.read_model_ids()
            except (Unavailable, Refused) as error:
                log.warning("catalogue not read", reason=str(error))
                continue
            self.model_ids.update(known)
            for name in sorted(missing & known.keys()):
                log.info("model added to catalogue", model=name)
                self.start_model(name)
