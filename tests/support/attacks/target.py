"""The attacked market, and the strangers' resources: wallets, a separate address, and the public chain."""

import secrets
import ssl
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, Protocol

import anyio
import attrs
import httpx
from anyio.abc import SocketStream

from common import abi
from common.address_book import AddressBook
from common.box import SecretKey
from common.domains import Domains
from common.scalars import hex_of
from common.secp256k1 import Wallet
from devnet.anvil import Anvil
from tests.integration.coordinatord.scene.party import Party
from tests.soak.answering import counted
from tests.soak.timeline import Timeline

# Limits apply per address. Linux answers on all of 127/8, so strangers can use another address than honest callers.
STRANGERS_HOST: Final = "127.0.0.66"
_NOBODY_TRUSTED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # plain HTTP, so load no certificates
_MINED_WITHIN: Final = 15.0


class Attack(Protocol):
    """A repeated attack. `strike` makes attempt n and returns the response."""

    name: str

    async def strike(self, n: int, /) -> str: ...


@attrs.define
class Target:
    """`patron` is an account of the node that gives tokens to strangers. `timeline` records responses,
    and complaints about responses that must not occur."""

    base_urls: Sequence[str]
    anvil: Anvil
    book: AddressBook
    patron: str
    timeline: Timeline
    wallets: dict[str, list[bytes]] = attrs.field(factory=dict)  # of strangers, by attack
    _turns: "count[int]" = attrs.field(factory=count)
    _sending: anyio.Lock = attrs.field(factory=anyio.Lock)

    def http(self, timeout: float = 30) -> httpx.AsyncClient:
        """Connect to the next coordinator, from the strangers' address."""
        base_url = self.base_urls[next(self._turns) % len(self.base_urls)]
        transport = httpx.AsyncHTTPTransport(
            local_address=STRANGERS_HOST, verify=_NOBODY_TRUSTED, limits=httpx.Limits(max_connections=None)
        )
        return httpx.AsyncClient(base_url=base_url, transport=transport, timeout=timeout)

    async def connect(self) -> SocketStream:
        url = httpx.URL(self.base_urls[next(self._turns) % len(self.base_urls)])
        return await anyio.connect_tcp(url.host, url.port or 80, local_host=STRANGERS_HOST)

    async def stranger(
        self, attack: str, http: httpx.AsyncClient, balance: int = 0, secret: bytes | None = None
    ) -> Party:
        """Create a new wallet with this many tokens."""
        box = SecretKey.generate()
        wallet = Wallet(secret or secrets.token_bytes(32))
        party = Party(wallet, Domains.of(self.book), self.book.job_registry, http, box.public.raw)
        self.wallets.setdefault(attack, []).append(party.wallet.address)
        if balance:
            transfer = abi.call_data(
                abi.selector("transfer(address,uint256)"), abi.address(party.wallet.address), abi.uint(balance)
            )
            await self._transact(self.patron, self.book.paytoken, transfer)
        return party

    async def register(self, party: Party) -> None:
        """Register an unlisted provider, which costs only the party's gas."""
        await self.anvil.call("anvil_setBalance", party.address, hex(10**18))
        await self.anvil.call("anvil_impersonateAccount", party.address)
        await self._transact(party.address, self.book.provider_registry, abi.selector("register()"))

    async def provider_id(self, party: Party) -> int:
        asked = abi.call_data(abi.selector("providerIdOf(address)"), abi.address(party.wallet.address))
        query = {"to": hex_of(self.book.provider_registry), "data": hex_of(asked)}
        return int(await self.anvil.call("eth_call", query, "latest"), 16)

    async def sign_in(self, party: Party, role: str = "client") -> str | None:
        """Return None on success, otherwise the response."""
        if party.token:
            return None
        answer = await party.http.get("/auth/nonce", params={"address": party.address})
        if answer.status_code == 200:
            answer = await party.http.post("/auth/session", json=party.answer_to(answer.json()["nonce"], role=role))
        if answer.status_code != 200:
            return f"sign in {counted(answer, self.timeline, {200, 403})}"
        party.token = answer.json()["token"]
        return None

    async def _transact(self, sender: str, contract: bytes, calldata: bytes) -> None:
        """Send a transaction and wait for it. Skip the stranger if the chain does not mine it in time."""
        call: dict[str, Any] = {"from": sender, "to": hex_of(contract), "data": hex_of(calldata)}
        async with self._sending:  # the node assigns nonces one at a time per sender
            with suppress(RuntimeError, httpx.TransportError), anyio.move_on_after(_MINED_WITHIN):
                sent = await self.anvil.call("eth_sendTransaction", call)
                await self._mined(sent)

    async def _mined(self, sent: str) -> None:
        while await self.anvil.call("eth_getTransactionReceipt", sent) is None:  # noqa: ASYNC110 - it is in the node
            await anyio.sleep(0.05)
