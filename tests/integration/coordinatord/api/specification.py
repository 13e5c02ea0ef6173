"""Every (route, status, code) that the specification gives for the routes that this coordinator serves.

`None` is the code null. A test that shows one says so with `@shows`; a test fails when one is shown by none.
"""

from typing import Final

ANY_HASH: Final = "<transaction hash>"
CONTRACT_ERROR: Final = "<contract error name>"

_RELAYED: Final = {
    (429, None),  # busy
    (503, None),  # chain_unreachable
    (503, "relayer_funds"),
    (503, "nonce_conflict"),
    (503, "rpc_internal"),
    (503, "rate_limited"),
    (503, "endpoint_refused"),
    (503, "relay_queue_full"),
    (503, "relay_queue_timeout"),
    (504, ANY_HASH),
}
_INDEX_BACKED: Final = {(503, None)}  # not_ready

SPECIFICATION: Final[dict[str, set[tuple[int, str | None]]]] = {
    "GET /healthz": {(200, None)},
    "GET /readyz": {(200, None), (503, None)},
    "GET /auth/nonce": {(200, None), (400, None)},
    "POST /auth/session": {
        (200, None),
        (400, None),
        (401, "invalid_signature"),
        (403, "not_registered"),
        (503, None),
        (503, "provider_id_read"),
    },
    "GET /evm/chain": {(200, None), (503, None), (503, "config_read")},
    "GET /v1/models": {(200, None), (400, None), *_INDEX_BACKED},
    "GET /evm/models": {(200, None)},
    "GET /v1/models/{name...}": {(200, None), (404, "model_not_found"), *_INDEX_BACKED},
    "POST /v1/jobs": {
        (201, None),
        (402, None),
        (400, None),
        (400, "cap_overflow"),
        (400, "invalid_order_signature"),
        (400, "container_without_payment"),
        (400, "container_required"),
        (400, "container_ambiguous"),
        (400, "invalid_payment_signature"),
        (400, "payer_has_code"),
        (400, "unknown_container"),
        (400, "too_short"),
        (400, "bad_version"),
        (400, "commitment_mismatch"),
        (409, None),  # a fresh quote
        (409, CONTRACT_ERROR),
        (413, "body_too_large"),
        (503, "payer_code_read"),
        (503, "registry_floor_read"),
        (503, "store_unavailable"),
        (503, "store_rejected"),
        *_RELAYED,
    },
    "GET /v1/jobs/{id}": {(200, None), (400, None), (404, None), *_INDEX_BACKED},
    "POST /v1/jobs/{id}/cancel": {
        (200, None),
        (400, None),
        (409, "StaleOp"),
        (409, "NotCancellable"),
        (409, "NotTheOwner"),
        (409, CONTRACT_ERROR),
        (413, "body_too_large"),
        (429, None),
        (503, None),
        (503, "job_read"),
        (504, ANY_HASH),
    },
    "GET /evm/jobs": {
        (200, None),
        (400, None),
        (401, "invalid_session"),
        (403, "not_registered"),
        *_INDEX_BACKED,
    },
    "GET /evm/jobs/summary": {(200, None), (400, None), *_INDEX_BACKED},
    "GET /evm/jobs/{job_id}": {(200, None), (400, None), (404, None), *_INDEX_BACKED},
    "POST /evm/ops": {
        (201, None),
        (400, None),
        (400, "result_required"),
        (400, "result_ambiguous"),
        (400, "unknown_result"),
        (401, "invalid_session"),
        (403, None),  # type invalid_op_signature
        (409, None),  # {ok: false, reason}
        (413, "body_too_large"),
        (429, None),
        (503, None),
        (503, "provider_id_read"),
        (503, "claim_simulate_read"),
        (503, "store_unavailable"),
        (504, ANY_HASH),
    },
    "POST /evm/simulate/claim": {(200, None), (400, None), (503, None), (503, "claim_simulate_read")},
    "PUT /evm/asks": {
        (200, None),
        (400, None),
        (401, "invalid_session"),
        (403, "invalid_signature"),
        (403, "not_registered"),
        (403, "provider_mismatch"),
        (409, "stale_snapshot"),
        (409, "superseded"),
        (413, "body_too_large"),
        (429, None),
        (503, None),
        (503, "publication_skipped"),
        (504, ANY_HASH),
    },
    "GET /evm/asks": {(200, None), (400, None), *_INDEX_BACKED},
    "GET /evm/asks/floors": {(200, None), (400, None), *_INDEX_BACKED},
    "GET /evm/providers": {(200, None), (400, None), *_INDEX_BACKED},
    "GET /evm/providers/{id}": {(200, None), (400, None), (404, None), *_INDEX_BACKED},
    "GET /evm/allowlist": {(200, None), (400, None), *_INDEX_BACKED},
    "GET /key": {(403, "escrow_unavailable")},
    "POST /release": {(403, "escrow_unavailable"), (413, "body_too_large")},
    "POST /handover": {(403, "escrow_unavailable"), (413, "body_too_large")},
}
