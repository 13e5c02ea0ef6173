"""Limits of the API from the specification: sizes in bytes, counts, and windows in seconds."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Request heads. The specification does not limit them.
HEAD_BYTES: Final = 16 * KIB
HEAD_VALUE: Final = 7 * KIB  # of one header, so that two long headers fit
HEAD_FIELDS: Final = 100

# JSON bodies, by route.
ORDER_BODY: Final = 20 * MIB  # POST /v1/jobs and POST /evm/ops
ASKS_BODY: Final = 32 * KIB
CANCEL_BODY: Final = 8 * KIB
HANDOVER_BODY: Final = 4 * KIB
RELEASE_BODY: Final = 2 * KIB
PLAIN_BODY: Final = MIB  # every other route

INLINE_BYTES: Final = 15_679_488  # largest container or result inside a JSON body, decoded
EVIDENCE_BYTES: Final = 32_768
JSON_VALUES: Final = 1 << 14  # of one body, far above any valid request

# Pages.
LARGEST_PAGE: Final = 1000
DEFAULT_PAGE: Final = 100
LARGEST_OFFSET: Final = 1_000_000
PAGE_BYTES: Final = 4 * MIB
LARGEST_BATCH_PAGE: Final = 100
DEFAULT_BATCH_PAGE: Final = 20

LONGEST_WAIT: Final = 30  # seconds of a provider's long poll

# Batches.
BATCH_LINES: Final = 50_000
PLAN_MODELS: Final = 16
METADATA_PAIRS: Final = 16
METADATA_KEY: Final = 64
METADATA_VALUE: Final = 512
BATCH_WINDOWS: Final = {"1h": 3600, "24h": 86_400}

SNAPSHOT_QUOTES: Final = 64

# Windows of orders and signatures.
LONGEST_SLA: Final = 86_400
ORDER_LIFE: Final = 86_400
ISSUED_WITHIN: Final = 600  # seconds before or after the clock: claim, settle, fail, cancel, release
AHEAD_AT_MOST: Final = 3600  # seconds: identities, capacity requests, ask snapshots

WEBHOOKS: Final = 10  # endpoints of one owner

# Sessions of one address.
NONCES: Final = 16
NONCE_LIFE: Final = 300
SESSIONS: Final = 32
SESSION_LIFE: Final = 86_400

RELIABILITY_SECS: Final = 7 * 86_400  # period of a provider's reliability
