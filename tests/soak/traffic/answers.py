"""Count responses, and record unexpected ones as complaints."""

from typing import Final

import httpx

from tests.soak.timeline import Timeline

# A market under faults may be too busy, and then answers with these.
_TROUBLE: Final = {429, 503}


def counted(answer: httpx.Response, timeline: Timeline, right: set[int]) -> str:
    """Return status and code. Complain if the status is neither in `right` nor a valid "not now"."""
    if answer.status_code not in right | _TROUBLE:
        told = (
            f"{answer.request.method} {answer.request.url.path} was answered {answer.status_code}: {answer.text[:300]}"
        )
        timeline.complain(told)
    if answer.is_success or not answer.content:
        return str(answer.status_code)
    error = answer.json().get("error", {})
    return f"{answer.status_code} {error.get('code') or error.get('type') or ''}".strip()
