import pytest
import trio
from trio.testing import MockClock

from common.pricing.assets import Modality
from svcd.backends.build import open_backend
from svcd.backends.settings import EchoSettings
from svcd.errors import WorkFailed
from tests.fakes.provider_work import work_on

pytestmark = pytest.mark.trio


@pytest.mark.parametrize(("modality", "units"), [("text", 5), ("embeddings", 0), ("image", 100), ("video", 100)])
async def test_the_input_comes_back_and_is_charged_by_its_kind(modality: Modality, units: int) -> None:
    async with open_backend(EchoSettings(delay_seconds=0)) as echo:
        output = await echo.run(work_on({"input": "x" * 8}, modality=modality))
    assert (output.output, output.completion_tok) == ({"input": "x" * 8}, units)


async def test_a_delay_that_does_not_fit_is_not_begun(autojump_clock: MockClock) -> None:
    async with open_backend(EchoSettings(delay_seconds=60)) as echo:
        began = trio.current_time()
        with pytest.raises(WorkFailed) as failed:
            await echo.run(work_on(deadline=began + 60))
        assert (failed.value.reason, trio.current_time()) == ("deadline_wait", began)
        await echo.run(work_on(deadline=began + 61))
        assert trio.current_time() == began + 60
