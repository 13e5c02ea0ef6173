"""Block headers and logs as nodes return them. Hex stays text, because most values are compared and never decoded.

Fields that are decoded must match a hex pattern. An answer with a field that does not match is rejected as a whole.
"""

from typing import Annotated

import msgspec

# Fits PostgreSQL's bigint.
Quantity = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{1,15}$")]
# At most nine hex digits, which reach the year 4147. Ten digits could exceed 9999, the last year of a Python date.
_Timestamp = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{1,9}$")]
Hash = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{64}$")]
_Bloom = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]+$")]
# 32 bytes in hex, with 0x.
Word = Annotated[str, msgspec.Meta(min_length=66, max_length=66)]


class BlockHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Block without its transactions."""

    number: Quantity
    hash: Hash
    parent_hash: Hash
    timestamp: _Timestamp
    logs_bloom: _Bloom

    @property
    def height(self) -> int:
        return int(self.number, 16)

    @property
    def time(self) -> int:
        return int(self.timestamp, 16)


class ChainLog(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Log of a mined block. A log of a pending block has no number and fails to decode."""

    address: str
    topics: tuple[Word, ...]
    data: str
    block_number: str
    block_hash: Word
    log_index: str
    removed: bool = False
