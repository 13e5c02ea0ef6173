"""How an answer is counted, and which are complained of."""

from typing import Final

import httpx

from tests.soak.timeline import Timeline

# A market under faults may be too busy to answer, and then says so.
_TROUBLE: Final = {429, 503}


def counted(answer: httpx.Response, timeline: Timeline, right: set[int]) -> str:
    """Its status and code; a complaint when the status is neither right nor an honest "not now"."""
    if answer.status_code not in right | _TROUBLE:
        told = (
            f"{answer.request.method} {answer.request.url.path} was answered {answer.status_code}: {answer.text[:300]}"
        )
        timeline.complain(told)
    if answer.is_success or not answer.content:
        return str(answer.status_code)
    error = answer.json().get("error", {})
    return f"{answer.status_code} {error.get('code') or error.get('type') or ''}".strip()
