"""Entries of an open tab in the journal: answers, failed requests, and acks with their vouchers.

    {"exchange": {…}}              number: the request's id
    {"failed": code}               number: the request's id
    {"ids": […], "voucher": {…}}   number: 2³² + the ack's position

Each entry is one encrypted row. It is written before the owner or the settle depends on the entry. Keys of channels are
not stored.
"""

from collections.abc import Mapping
from typing import Final

import structlog

from common.json_object import MAX_CODE_LENGTH, ObjectReader
from common.refusal import Refused
from common.tab.messages import SignedVoucher, TabAck
from common.tab.terms import Exchange
from common.tab.transcript import exchange_json, read_exchange
from svcd.journal.item_seal import ItemSeal
from svcd.journal.journal import Journal
from svcd.tabs.ledger import TabLedger

log = structlog.get_logger(__name__)

_FIRST_ACK_NUMBER: Final = 2**32
_ENTRY_READER: Final = ObjectReader("a journal entry of a tab", "malformed_entry")


class TabEntries:
    """Entries of one tab."""

    def __init__(self, journal: Journal, seal: ItemSeal, job_id: bytes) -> None:
        self._journal = journal
        self._seal = seal
        self._job_id = job_id
        self._ack_count = 0

    async def record_answer(self, exchange: Exchange) -> None:
        await self._write(exchange.id, {"exchange": exchange_json(exchange)})

    async def record_failure(self, request_id: int, code: str) -> None:
        await self._write(request_id, {"failed": code})

    async def record_ack(self, ack: TabAck) -> None:
        number = _FIRST_ACK_NUMBER + self._ack_count
        self._ack_count += 1
        await self._write(number, {"ids": list(ack.ids), "voucher": ack.voucher.as_json()})

    async def restore(self, ledger: TabLedger) -> bool:
        """Load the entries of an earlier run into the ledger. Return True if the journal has entries of the tab."""
        ends: dict[int, Exchange | str] = {}
        acks: list[TabAck] = []
        rows = await self._journal.read_items(self._job_id)
        self._ack_count = sum(number >= _FIRST_ACK_NUMBER for number in rows)
        try:
            for number, sealed in sorted(rows.items()):
                fields = _ENTRY_READER.read_object(self._seal.open_json(sealed), None)
                if number >= _FIRST_ACK_NUMBER:
                    acks.append(_read_ack(fields))
                else:
                    ends[number] = _read_end(fields)
            ledger.restore(ends, acks)
        except Refused as unusable:
            log.error("tab not restored", job="0x" + self._job_id.hex(), reason=unusable.message)
        return bool(rows)

    async def _write(self, number: int, entry: dict[str, object]) -> None:
        await self._journal.record_finished_item(self._job_id, number, self._seal.seal_json(entry))


def _read_end(fields: Mapping[str, object]) -> Exchange | str:
    if "failed" in fields:
        return _ENTRY_READER.read_text(fields["failed"], "failed", MAX_CODE_LENGTH)
    return read_exchange(_ENTRY_READER.read_fields(fields, None, {"exchange"})["exchange"])


def _read_ack(fields: Mapping[str, object]) -> TabAck:
    ids = _ENTRY_READER.read_list(fields.get("ids"), "ids", 1, _FIRST_ACK_NUMBER)
    return TabAck(
        tuple(_ENTRY_READER.read_count(each, f"ids[{n}]") for n, each in enumerate(ids)),
        SignedVoucher.read(fields.get("voucher")),
    )
