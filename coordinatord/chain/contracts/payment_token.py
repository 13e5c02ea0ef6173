"""Read the balances and authorisations of the payment token that claims depend on."""

from typing import Final

import attrs

from common import abi
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.views import Reverted, View, read_many

_BALANCE_SELECTOR: Final = abi.selector("balanceOf(address)")
_AUTHORIZATION_SELECTOR: Final = abi.selector("authorizationState(address,bytes32)")
_ERROR_CODE: Final = "claim_simulate_read"


@attrs.frozen(slots=True)
class Funds:
    """Balances by owner, and job ids whose payment authorisation is used or cancelled."""

    balances: dict[bytes, int]
    used_job_ids: set[bytes]


@attrs.frozen(slots=True)
class PaymentToken:
    rpc: Rpc
    address: bytes

    async def read_funds(self, owners: list[bytes], jobs: list[tuple[bytes, bytes]]) -> Funds:
        """Read all balances and authorisations in one request. `jobs` are pairs of owner and job id. The job id is the
        nonce of the payment authorisation."""
        views = [self.balance_view(owner) for owner in owners]
        views += [
            self._view(abi.call_data(_AUTHORIZATION_SELECTOR, abi.address(owner), abi.bytes32(job_id)))
            for owner, job_id in jobs
        ]
        answers = [decode_balance(answer) for answer in await read_many(self.rpc, views, _ERROR_CODE)]
        balances = {owner: amount for owner, amount in zip(owners, answers, strict=False) if amount is not None}
        states = answers[len(owners) :]
        return Funds(balances, {job_id for (_, job_id), used in zip(jobs, states, strict=True) if used})

    def balance_view(self, owner: bytes, block: str = "latest") -> View:
        return View(self.address, abi.call_data(_BALANCE_SELECTOR, abi.address(owner)), _ERROR_CODE, block=block)

    def _view(self, calldata: bytes) -> View:
        return View(self.address, calldata, _ERROR_CODE)


def decode_balance(answer: bytes | Reverted) -> int | None:
    """Return the balance, or None if the token's answer holds no balance. The owner then counts as able to pay."""
    if isinstance(answer, Reverted) or len(answer) < 32:
        return None
    return abi.uint_at(answer, 0, 256)
