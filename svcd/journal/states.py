"""Where a job stands in the journal.

    claiming ──► claimed ──► sealed ──► settled
        │           │           │
        │           ├───────────┴─────► failing ──► failed
        │           └───────────┴─────► given_up
        └──► not_claimed

A state is written before what it names is acted on: `claiming` before the claim is sent, `sealed` (with the result)
before the settle, `failing` (with the reason) before the fail.
"""

from typing import Final, Literal

JournalState = Literal["claiming", "claimed", "sealed", "failing", "settled", "failed", "given_up", "not_claimed"]

LIVE: Final[tuple[JournalState, ...]] = ("claiming", "claimed", "sealed", "failing")
