"""Limits of the API from the specification: sizes in bytes, counts, and windows in seconds."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Request heads. The specification does not limit them.
MAX_HEAD_BYTES: Final = 16 * KIB
MAX_HEADER_VALUE_BYTES: Final = 7 * KIB  # a head has room for two such headers
MAX_HEADERS: Final = 100

# JSON bodies, by route.
MAX_ORDER_BODY_BYTES: Final = 20 * MIB  # POST /v1/jobs and POST /evm/ops
MAX_ASKS_BODY_BYTES: Final = 32 * KIB
MAX_CANCEL_BODY_BYTES: Final = 8 * KIB
MAX_HANDOVER_BODY_BYTES: Final = 4 * KIB
MAX_RELEASE_BODY_BYTES: Final = 2 * KIB
MAX_OTHER_BODY_BYTES: Final = MIB  # every other route

MAX_INLINE_BYTES: Final = 15_679_488  # largest container or result inside a JSON body, decoded
MAX_EVIDENCE_BYTES: Final = 32_768
MAX_VALUES_PER_BODY: Final = 1 << 14  # far more JSON values than any valid request has

# Pages.
MAX_PAGE_ROWS: Final = 1000
DEFAULT_PAGE_ROWS: Final = 100
MAX_OFFSET_ROWS: Final = 1_000_000
MAX_PAGE_BYTES: Final = 4 * MIB
MAX_BATCH_PAGE_ROWS: Final = 100
DEFAULT_BATCH_PAGE_ROWS: Final = 20

MAX_POLL_WAIT_S: Final = 30

# Batches.
MAX_BATCH_LINES: Final = 50_000
MAX_PLAN_MODELS: Final = 16
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY_LENGTH: Final = 64
MAX_METADATA_VALUE_LENGTH: Final = 512
BATCH_WINDOWS_S: Final = {"1h": 3600, "24h": 86_400}

MAX_SNAPSHOT_QUOTES: Final = 64

# Windows of orders and signatures.
MAX_SLA_S: Final = 86_400
MAX_ORDER_LIFETIME_S: Final = 86_400
# Largest difference between `issued_at` and the clock for a claim, settle, fail, cancel or release.
MAX_OP_SKEW_S: Final = 600
# Maximum time by which `issued_at` or `signed_at` of an identity, capacity request or ask snapshot may be ahead of the
# clock.
MAX_SIGNED_AHEAD_S: Final = 3600

MAX_WEBHOOKS_PER_OWNER: Final = 10

# Sign-in nonces and sessions.
MAX_NONCES_PER_ADDRESS: Final = 16
NONCE_LIFETIME_S: Final = 300
MAX_SESSIONS_PER_ADDRESS: Final = 32
SESSION_LIFETIME_S: Final = 86_400

RELIABILITY_PERIOD_S: Final = 7 * 86_400
