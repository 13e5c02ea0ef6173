"""Fixed, invented values for these vectors. Bytes are 0x hex and integers are decimal strings, which every language
and forge's JSON reader can read."""

from eth_account import Account
from eth_utils import keccak

CHAIN_ID = 31337


def at(name: str) -> bytes:
    return keccak(text=f"signing vectors: {name}")


SECRET = at("the signer")
SIGNER = Account.from_key(SECRET)


def hexed(raw: bytes) -> str:
    return "0x" + raw.hex()


def strings(**integers: int) -> dict[str, str]:
    return {name: str(value) for name, value in integers.items()}
