"""A payment token of which every account has a balance."""

from typing import Any, Final

from coordinatord.chain.contracts.payment_token import Funds


class _FundedToken:
    async def read_funds(self, owners: list[bytes], _: list[tuple[bytes, bytes]]) -> Funds:
        return Funds(dict.fromkeys(owners, 1), set())


FUNDED: Final[Any] = _FundedToken()
