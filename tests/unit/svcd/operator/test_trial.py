"""`svcd try`: a job through the backend and both seals, with its price, and with the reason if it would fail."""

from pathlib import Path

import pytest

from common.daemon.process import Fatal
from svcd.backends.discount import AskRates
from svcd.operator.answer_text import readable_text
from svcd.operator.trial import trial_report, try_model
from tests.support.fakes.market import BOOK, START, Market
from tests.unit.svcd.stages.running import config_for, model_for


async def test_trial_returns_the_answer_and_its_price(tmp_path: Path) -> None:
    market = Market(lambda: START)
    dear = model_for("demo/text", {"text"}, asks={60: AskRates(10**6, 2 * 10**6), 3600: AskRates(0, 10**6)})
    config = config_for(market, tmp_path, addresses=BOOK, models=(dear,))
    tried = await try_model(config, "demo/text", "good day")
    assert tried.answer == "{'input': 'good day'}"  # the demo's backend echoes its input
    assert (tried.units_in, tried.completion_tok) == (5, 5)
    assert tried.earnings == {60: 15, 3600: 5}
    assert "earns    0.000015 Dev Dollar at the ask for 60 s" in trial_report(tried)
    assert (market.calls, market.jobs) == ([], {})


@pytest.mark.parametrize(
    ("name", "units_out", "words"),
    [
        ("demo/none", None, "'demo/none' is not configured; the configured models are demo/text, demo/image"),
        ("demo/image", 7, "would have failed: media_input_refused: the request needs 1048576 units_out"),
    ],
)
async def test_failing_job_is_reported_with_its_reason(
    name: str, units_out: int | None, words: str, tmp_path: Path
) -> None:
    config = config_for(Market(lambda: START), tmp_path, addresses=BOOK)
    with pytest.raises(Fatal, match=words):
        await try_model(config, name, "x", units_out)


async def test_image_is_asked_for_by_its_prompt_without_a_box_key(tmp_path: Path) -> None:
    config = config_for(Market(lambda: START), tmp_path, addresses=BOOK, box=None)
    tried = await try_model(config, "demo/image", "a cat")
    assert (tried.answer[:10], tried.completion_tok) == ("{'data': [", 1024 * 1024)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"choices": [{"message": {"content": "yes"}}]}, "yes"),
        ({"output": [{"type": "reasoning"}, {"content": [{"type": "output_text", "text": "yes"}]}]}, "yes"),
        ({"choices": [{"message": {"content": None}}]}, "{'choices': [{'message': {'content': None}}]}"),
        ("x" * 600, "x" * 500 + "… (600 characters)"),
    ],
)
def test_text_of_an_answer_is_what_a_person_reads(output: object, text: str) -> None:
    assert readable_text(output) == text
