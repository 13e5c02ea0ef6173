"""An external signer: pauses after failures, timeouts, and many signatures in order."""

import attrs
import pytest

from common.secp256k1 import Wallet
from common.transactions import Transaction
from coordinatord.chain.relayer.signers import ExternalSigner, SignerUnavailable, WalletSigner, sign_in_order
from coordinatord.chain.signing.signers import SigningFailed

pytestmark = pytest.mark.anyio

WALLET = Wallet(bytes(31) + b"\x07")


def transaction(nonce: int) -> Transaction:
    return Transaction(1, nonce, 1, 2, 21_000, bytes(20), 0, b"")


@attrs.define
class Program:
    """A signer that signs every nonce except those in `refuses`."""

    refuses: set[int] = attrs.field(factory=set)
    asked: list[int] = attrs.field(factory=list)
    now: float = 100.0

    def clock(self) -> float:
        return self.now

    async def __call__(self, asked: Transaction) -> bytes:
        self.asked.append(asked.nonce)
        if asked.nonce in self.refuses:
            raise SigningFailed("it is locked")
        return asked.sign(WALLET).raw

    def signer(self) -> ExternalSigner:
        return ExternalSigner(WALLET.address, self, 1, self.clock)


async def test_signatures_before_the_first_failure_count() -> None:
    program = Program(refuses={11})
    wanted = [transaction(nonce) for nonce in range(30)]
    signed, failure = await sign_in_order(program.signer(), wanted)
    assert [one.raw for one in signed] == [one.sign(WALLET).raw for one in wanted[:11]]
    assert isinstance(failure, SignerUnavailable)
    assert max(program.asked) < 16  # no requests follow the round that failed
    assert await sign_in_order(WalletSigner(WALLET), wanted) == ([one.sign(WALLET) for one in wanted], None)


async def test_failed_signer_pauses_longer_each_time() -> None:
    program = Program(refuses={0})
    signer = program.signer()
    rests = []
    for _ in range(8):
        began = program.now
        with pytest.raises(SignerUnavailable, match="it is locked"):
            await signer.sign(transaction(0))
        asked = len(program.asked)
        while True:
            program.now += 0.5
            try:
                await signer.sign(transaction(1))
            except SignerUnavailable:
                assert len(program.asked) == asked  # no requests during the pause
            else:
                break
        rests.append(program.now - began)
        signer._failures = len(rests)  # another failure: a success would reset the pauses
    assert rests == [0.5, 1, 2, 4, 8, 16, 16, 16]


async def test_signature_resets_earlier_failures() -> None:
    program = Program(refuses={0})
    signer = program.signer()
    for _ in range(3):
        with pytest.raises(SignerUnavailable):
            await signer.sign(transaction(0))
        program.now += 60
        await signer.sign(transaction(1))
    assert program.asked == [0, 1] * 3
