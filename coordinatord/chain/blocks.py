"""Headers and logs as nodes answer them: hex left as it is, because most of it is compared and never read."""

from typing import Annotated

import msgspec

Word = Annotated[str, msgspec.Meta(min_length=66, max_length=66)]  # 0x and 32 bytes


class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A block without its transactions."""

    number: str
    hash: Word
    parent_hash: Word
    timestamp: str
    logs_bloom: str

    @property
    def height(self) -> int:
        return int(self.number, 16)

    @property
    def time(self) -> int:
        return int(self.timestamp, 16)


class Log(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A log of a mined block: one of a pending block has no number, and does not decode."""

    address: str
    topics: tuple[Word, ...]
    data: str
    block_number: str
    block_hash: Word
    log_index: str
    removed: bool = False
