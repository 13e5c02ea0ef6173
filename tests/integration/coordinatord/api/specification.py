"""Every (route, status, code) that the specification gives for the routes that this coordinator serves.

An error whose code is null goes by its type; an answer that is no error envelope goes by None. A test that shows one
says so with `@shows`; a test fails when one is shown by none.
"""

from typing import Final

Answer = tuple[int, str | None]

ANY_HASH: Final = "<transaction hash>"
CONTRACT_ERROR: Final = "<contract error name>"

MALFORMED: Final[Answer] = (400, "invalid_request_error")
TOO_LARGE: Final[Answer] = (413, "body_too_large")
INDEX_TRAILS: Final[Answer] = (503, "not_ready")
NOT_READY: Final[Answer] = (503, None)  # the readiness itself
STORED: Final[frozenset[Answer]] = frozenset({(503, "store_unavailable"), (503, "store_rejected")})
CHAIN_READ: Final[frozenset[Answer]] = frozenset({(503, "chain_unreachable"), (503, "rate_limited")})
RELAYED: Final[frozenset[Answer]] = CHAIN_READ | {
    (429, "busy"),
    (503, "relayer_funds"),
    (503, "nonce_conflict"),
    (503, "rpc_internal"),
    (503, "endpoint_refused"),
    (503, "relay_queue_full"),
    (503, "relay_queue_timeout"),
    (504, ANY_HASH),
}

SPECIFICATION: Final[dict[str, set[Answer]]] = {
    "GET /healthz": {(200, None)},
    "GET /readyz": {(200, None), NOT_READY},
    "GET /auth/nonce": {(200, None), MALFORMED},
    "POST /auth/session": {
        (200, None),
        MALFORMED,
        (401, "invalid_signature"),
        (403, "not_registered"),
        TOO_LARGE,
        *CHAIN_READ,
        (503, "provider_id_read"),
    },
    "GET /evm/chain": {(200, None), *CHAIN_READ, (503, "config_read")},
    "GET /v1/models": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /evm/models": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /v1/models/{name...}": {(200, None), (404, "model_not_found"), INDEX_TRAILS},
    "POST /v1/jobs": {
        (201, None),
        (402, None),
        MALFORMED,
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
        TOO_LARGE,
        (503, "payer_code_read"),
        (503, "registry_floor_read"),
        *STORED,
        *RELAYED,
    },
    "GET /v1/jobs/{id}": {(200, None), MALFORMED, (404, "not_found"), INDEX_TRAILS},
    "POST /v1/jobs/{id}/cancel": {
        (200, None),
        MALFORMED,
        (409, "StaleOp"),
        (409, "NotCancellable"),
        (409, "NotTheOwner"),
        (409, CONTRACT_ERROR),
        TOO_LARGE,
        (503, "job_read"),
        *RELAYED,
    },
    "GET /evm/jobs": {
        (200, None),
        MALFORMED,
        (401, "invalid_session"),
        (403, "not_registered"),
        INDEX_TRAILS,
    },
    "GET /evm/jobs/summary": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /evm/jobs/{job_id}": {(200, None), MALFORMED, (404, "not_found"), INDEX_TRAILS},
    "POST /evm/ops": {
        (201, None),
        MALFORMED,
        (400, "result_required"),
        (400, "result_ambiguous"),
        (400, "unknown_result"),
        (401, "invalid_session"),
        (403, "invalid_op_signature"),
        (409, None),  # {ok: false, reason}
        TOO_LARGE,
        (503, "provider_id_read"),
        (503, "claim_simulate_read"),
        *STORED,
        *RELAYED,
    },
    "POST /evm/simulate/claim": {(200, None), MALFORMED, TOO_LARGE, *CHAIN_READ, (503, "claim_simulate_read")},
    "PUT /evm/asks": {
        (200, None),
        MALFORMED,
        (401, "invalid_session"),
        (403, "invalid_signature"),
        (403, "not_registered"),
        (403, "provider_mismatch"),
        (409, "stale_snapshot"),
        (409, "superseded"),
        TOO_LARGE,
        (503, "provider_id_read"),
        (503, "registry_floor_read"),
        (503, "publication_skipped"),
        *RELAYED,
    },
    "GET /evm/asks": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /evm/asks/floors": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /evm/providers": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /evm/providers/{id}": {(200, None), MALFORMED, (404, "not_found"), INDEX_TRAILS},
    "GET /evm/allowlist": {(200, None), MALFORMED, INDEX_TRAILS},
    "GET /key": {(200, None), (403, "escrow_unavailable")},
    "POST /release": {
        (200, None),
        MALFORMED,
        (400, "stale_issued_at"),
        (400, "bad_container"),
        (400, "wrap_mismatch"),
        (400, "unseal_failed"),
        (403, "wrong_wallet"),
        (403, "escrow_unavailable"),
        (404, "no_claim"),
        (409, "not_claimed"),
        TOO_LARGE,
        *CHAIN_READ,
        (503, "job_read"),
        (503, "provider_id_read"),
    },
    "POST /handover": {(403, "escrow_unavailable"), (403, "escrow_handover_disabled"), TOO_LARGE},
}
