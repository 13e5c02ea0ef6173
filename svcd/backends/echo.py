"""The demo's backend: answers with what it was given. It needs no server, and its answers can be checked."""

import attrs
import trio

from common.pricing.units import text_units
from common.strict_json import canonical
from svcd.backends.settings import EchoSettings
from svcd.failures import JobFailed
from svcd.work import Output, Work


@attrs.frozen(slots=True)
class EchoBackend:
    settings: EchoSettings

    async def run(self, work: Work) -> Output:
        if trio.current_time() + self.settings.delay_seconds >= work.deadline:
            raise JobFailed("deadline_wait", "the delay would end past the deadline")
        await trio.sleep(self.settings.delay_seconds)
        units = _units(work)
        return Output(work.input, units, {"units": units})

    async def is_up(self) -> bool:
        return True


def _units(work: Work) -> int:
    match work.modality:
        case "text":
            return min(text_units(len(canonical(work.input))), work.units_out)
        case "embeddings":
            return 0
        case "image" | "video":
            return work.units_out
