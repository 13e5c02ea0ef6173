"""The conformance checks of a coordinator, and the answers that they show."""

from typing import Final

from tests.conformance.coordinator import Trial, try_coordinator
from tests.conformance.verdicts import Report
from tests.integration.coordinatord.scene.shows import shows_each
from tests.integration.coordinatord.scene.stage import Stage

SHOWN: Final = {
    "GET /healthz": "200",
    "GET /readyz": "200",
    "GET /auth/nonce": "200 400:invalid_request_error",
    "POST /auth/session": "200 400:invalid_request_error 401:invalid_signature 403:not_registered",
    "GET /v1/models": "200 400:invalid_request_error",
    "GET /evm/models": "200",
    "GET /v1/models/{name...}": "200 404:model_not_found",
    "POST /v1/jobs": "402 409 400:invalid_request_error 400:cap_overflow 400:invalid_order_signature"
    " 400:container_without_payment 400:container_required 400:container_ambiguous 400:unknown_container"
    " 400:bad_version 400:too_short 400:commitment_mismatch 400:invalid_payment_signature",
    "GET /v1/jobs/{id}": "400:invalid_request_error 404:not_found",
    "POST /v1/jobs/{id}/cancel": "400:invalid_request_error 409:NotTheOwner 409:StaleOp",
    "GET /v1/files/{id}": "404:not_found",
    "GET /v1/files/{id}/content": "404:not_found",
    "POST /v1/batches": "402",
    "GET /evm/jobs/summary": "400:invalid_request_error",
    "GET /evm/jobs/{job_id}": "400:invalid_request_error 404:not_found",
    "GET /evm/providers/{id}": "404:not_found",
    "POST /evm/ops": "403:invalid_op_signature",
}


@shows_each(
    (route, int(answer[:3]), answer[4:] or None) for route, answers in SHOWN.items() for answer in answers.split()
)
async def test_coordinator_conforms(stage: Stage) -> None:
    report = await try_coordinator(stage.http, Trial(), Report())
    assert [f"{row.what}: {row.detail}" for row in report.wrong] == []
    assert len(report.rows) > 120
