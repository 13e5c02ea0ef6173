import json
from typing import Any

import pytest

from common.canonical_json import canonical
from common.refusal import Refused
from common.tab import messages
from common.tab.messages import (
    SignedVoucher,
    TabAck,
    TabAnswer,
    TabDelta,
    TabFailure,
    TabRequest,
    Welcome,
    encode,
    read_owner_message,
    read_provider_message,
)

VOUCHER = SignedVoucher(3, 200, 100, b"c" * 32, b"s" * 65)


def changed(message: messages.OwnerMessage | messages.ProviderMessage, **members: Any) -> bytes:
    return canonical(json.loads(encode(message)) | members)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"more":1,"t":"close"}',
        b'{"t": "close"}',
        b'{"t":"answer"}',
        changed(TabRequest(1, {}, VOUCHER), id=0),
        changed(TabRequest(1, {}, VOUCHER), id=2**32),
        changed(TabRequest(1, {}, VOUCHER), input=[]),
        changed(TabRequest(1, {}, VOUCHER), voucher={}),
        changed(TabAck((1,), VOUCHER), ids=[]),
        changed(TabAck((1,), VOUCHER), ids=list(range(1, 66))),
    ],
)
def test_other_owner_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read_owner_message(raw)
    assert refused.value.code == "malformed_message"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"t":"close"}',
        changed(TabDelta(1, 0, ({},)), chunks=[]),
        changed(TabDelta(1, 0, ({},)), chunks=[{}] * 257),
        changed(TabAnswer(1, None, {}, 1, 1), units_out=-1),
        changed(TabFailure(1, "x"), code=""),
        encode(TabAnswer(1, 5, {}, 1, 1)).replace(b"5", b"1152921504606846976"),
        changed(Welcome(1, 0, 0, 0, ()), direct={"url": "x"}),
    ],
)
def test_other_provider_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read_provider_message(raw)
    assert refused.value.code == "malformed_message"
