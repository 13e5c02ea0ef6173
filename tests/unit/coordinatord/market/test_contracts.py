import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from common import artifacts
from common.refusal import Refused
from coordinatord.market.contracts import Contract, checksum_address, explain_revert, is_code_of, read_address
from tests.unit.coordinatord.market.nodes import answering

ADDRESS = "0x5FbDB2315678afecb367f032d93F642f64180aa3"


@pytest.mark.parametrize("text", [ADDRESS, ADDRESS.lower(), "0x" + ADDRESS[2:].upper()])
def test_address_is_read_in_one_case_or_with_its_checksum(text: str) -> None:
    assert read_address(text, "owner") == ADDRESS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ADDRESS.replace("F", "f", 1), "owner must have the checksum of EIP-55"),
        (ADDRESS[:-1], "owner must be 0x-prefixed hex of 20 bytes"),
        (ADDRESS[2:], "owner must be 0x-prefixed hex of 20 bytes"),
        ("0x" + "00" * 20, "owner must not be the zero address"),
        (7, "owner must be 0x-prefixed hex of 20 bytes"),
    ],
)
def test_other_address_is_refused_by_its_name(text: object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read_address(text, "owner")


@pytest.mark.parametrize("name", ["AskRegistry", "JobRegistry", "ProviderRegistry"])
def test_code_is_compared_without_immutable_values(name: str) -> None:
    template = artifacts.deployed_code(name)
    holes = template.count(b"\x7f" + bytes(32))
    assert holes >= 1
    assert is_code_of(name, template.replace(b"\x7f" + bytes(32), b"\x7f" + bytes(range(32))))
    assert not is_code_of(name, template[:-1])
    assert not is_code_of(name, template + b"\x00")
    for position in (0, len(template) // 2, len(template) - 1):
        other = bytearray(template)
        other[position] ^= 1
        assert not is_code_of(name, bytes(other))


def test_revert_is_explained_by_name_and_values() -> None:
    owner = "0x" + "ab" * 20
    unauthorised = keccak(text="OwnableUnauthorizedAccount(address)")[:4] + encode(["address"], [owner])
    assert explain_revert(unauthorised) == f"OwnableUnauthorizedAccount({checksum_address(owner)})"
    assert explain_revert(keccak(text="FeeTooHigh()")[:4]) == "FeeTooHigh()"
    assert explain_revert(keccak(text="Error(string)")[:4] + encode(["string"], ["blacklisted"])) == "blacklisted"
    assert explain_revert(keccak(text="Panic(uint256)")[:4] + encode(["uint256"], [17])) == "Panic(17)"
    assert "0xdeadbeef" in explain_revert(b"\xde\xad\xbe\xef")
    assert explain_revert(b"") == "the call reverted without a reason"


def test_revert_that_is_cut_off_is_shown_as_it_is() -> None:
    cut = keccak(text="OwnableUnauthorizedAccount(address)")[:4] + b"\x01"
    assert explain_revert(cut) == f"OwnableUnauthorizedAccount: 0x{cut.hex()}"


def test_answer_of_another_contract_is_refused() -> None:
    with pytest.raises(Refused, match="is not a JobRegistry: the answer to fees is invalid"):
        Contract("JobRegistry", ADDRESS).read(answering(eth_call="0x01"), "fees")
