import pytest

from common.inclusion.header import encode_header, read_header
from common.inclusion.trie import EMPTY_ROOT
from common.refusal import Refused

# The first block of Ethereum's main network, as nodes return it.
GENESIS = {
    "hash": "0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3",
    "parentHash": "0x" + "00" * 32,
    "sha3Uncles": "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347",
    "miner": "0x" + "00" * 20,
    "stateRoot": "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544",
    "transactionsRoot": "0x" + EMPTY_ROOT.hex(),
    "receiptsRoot": "0x" + EMPTY_ROOT.hex(),
    "logsBloom": "0x" + "00" * 256,
    "difficulty": "0x400000000",
    "number": "0x0",
    "gasLimit": "0x1388",
    "gasUsed": "0x0",
    "timestamp": "0x0",
    "extraData": "0x11bbe8db4e347b4e8c937c1c8370e4b5ed33adb3db69cbdb7a38e1e50b1b82fa",
    "mixHash": "0x" + "00" * 32,
    "nonce": "0x0000000000000042",
}


def test_header_of_the_main_networks_first_block_has_its_hash() -> None:
    header = read_header(encode_header(GENESIS))
    assert "0x" + header.hash.hex() == GENESIS["hash"]
    assert (header.number, header.receipts_root) == (0, EMPTY_ROOT)


def test_block_whose_fields_do_not_make_its_hash_is_refused() -> None:
    with pytest.raises(Refused, match="does not match its header"):
        encode_header(GENESIS | {"gasUsed": "0x1"})
