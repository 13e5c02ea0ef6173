"""Limits of the API from the specification: sizes in bytes, counts, and windows in seconds."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Request heads. The specification does not limit them.
HEAD_BYTES: Final = 16 * KIB
# Two long headers fit.
HEADER_VALUE_BYTES: Final = 7 * KIB
HEAD_FIELDS: Final = 100

# JSON bodies, by route.
ORDER_BODY_BYTES: Final = 20 * MIB  # POST /v1/jobs and POST /evm/ops
ASKS_BODY_BYTES: Final = 32 * KIB
CANCEL_BODY_BYTES: Final = 8 * KIB
HANDOVER_BODY_BYTES: Final = 4 * KIB
RELEASE_BODY_BYTES: Final = 2 * KIB
PLAIN_BODY_BYTES: Final = MIB  # every other route

INLINE_BYTES: Final = 15_679_488  # largest container or result inside a JSON body, decoded
EVIDENCE_BYTES: Final = 32_768
# Far above any valid request.
VALUES_PER_BODY: Final = 1 << 14

# Pages.
MAX_PAGE_ROWS: Final = 1000
DEFAULT_PAGE_ROWS: Final = 100
MAX_OFFSET_ROWS: Final = 1_000_000
PAGE_BYTES: Final = 4 * MIB
MAX_BATCH_PAGE_ROWS: Final = 100
DEFAULT_BATCH_PAGE_ROWS: Final = 20

MAX_POLL_WAIT_S: Final = 30

# Batches.
BATCH_LINES: Final = 50_000
PLAN_MODELS: Final = 16
METADATA_PAIRS: Final = 16
METADATA_KEY_LENGTH: Final = 64
METADATA_VALUE_LENGTH: Final = 512
BATCH_WINDOWS: Final = {"1h": 3600, "24h": 86_400}

SNAPSHOT_QUOTES: Final = 64

# Windows of orders and signatures.
MAX_SLA_S: Final = 86_400
ORDER_LIFETIME_S: Final = 86_400
# Before or after the clock: claim, settle, fail, cancel, release.
MAX_OP_SKEW_S: Final = 600
# Identities, capacity requests, ask snapshots.
MAX_AHEAD_S: Final = 3600

WEBHOOKS_PER_OWNER: Final = 10

# Sessions of one address.
NONCES: Final = 16
NONCE_LIFETIME_S: Final = 300
SESSIONS: Final = 32
SESSION_LIFETIME_S: Final = 86_400

RELIABILITY_PERIOD_S: Final = 7 * 86_400
