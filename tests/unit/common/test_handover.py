import pytest

from common.escrow_handover import HandedOverKey, Handover, handover_content
from common.refusal import Refused
from tests.vectors.vector_file import cases

CASES = cases("handover.json")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_message_reads_as_its_vector_says(case):
    message = bytearray.fromhex(case["message"])
    if "refused" in case:
        with pytest.raises(Refused) as refused:
            Handover.parse(message)
        assert refused.value.code == case["refused"]
        return
    read = Handover.parse(message)
    keys = [HandedOverKey(bytearray.fromhex(key["secret"]), key["announced_from"]) for key in case["keys"]]
    assert (read.release, list(read.keys)) == (case["release"], keys)
    assert handover_content(read.release, keys) == read.content
    assert read.content + read.signature == message


def test_secrets_show_in_no_repr():
    key = HandedOverKey(bytearray(b"K" * 32), 1)
    assert "K" * 8 not in repr(key)
    assert "K" * 8 not in repr(Handover.parse(handover_content(1, [key]) + bytes(65)))
