"""Terms of a local batch in the market."""

import attrs

from svc.batches.offers import LineOffer
from svc.records import Model, ModelDetails
from svc.serve.batch_lines import BatchRequest, shared_terms
from svc.serve.requests import AnswerForm, AnswerRequest
from svc.serve.settings import BuyingRule

UNRATED = BuyingRule(window="1h", providers=(7,), rate_in=None, rate_out=None, max_output_tokens=None)
RATED = attrs.evolve(UNRATED, rate_in=3, rate_out=5)


def requests(*rules: BuyingRule) -> list[BatchRequest]:
    model = Model("m", "demo", ModelDetails(1, True, None, "/v1/responses"))
    return [
        BatchRequest(str(number), AnswerRequest("/v1/responses", "m", model, rule, {}, AnswerForm()))
        for number, rule in enumerate(rules)
    ]


def test_lines_without_rates_stay_with_the_chosen_providers() -> None:
    """Without an offer, the market's plan could give these lines to other providers."""
    assert shared_terms(requests(UNRATED, RATED)) == ((7,), LineOffer())
    assert shared_terms(requests(UNRATED)) == ((7,), LineOffer())
    assert shared_terms(requests(RATED)) == ((7,), None)
