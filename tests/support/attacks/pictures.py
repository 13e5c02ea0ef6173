"""Attacks on providers: paid orders with content that is expensive to process."""

import base64
import secrets
import struct
from typing import Final

import anyio
import attrs

from devnet.catalogue import MODELS
from svc.client import Client
from svc.errors import SvcError
from tests.soak.programs import PIXEL_RATE, SLA_SECONDS
from tests.support.attacks.spending import AMPLE
from tests.support.attacks.target import Target

_SIDE: Final = 64
_CHUNKS: Final = 60_000  # close to a new wallet's storage limit
_TIMEOUT_S: Final = 30.0
_NOBODY: Final = "http://127.0.0.1:9"  # a gateway, unused because no result is read


def _chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + bytes(4)


PICTURE: Final = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 0, 0, 0, 0))
    + _chunk(b"teXt") * _CHUNKS
)


@attrs.define
class Pictures:
    """A picture of tens of thousands of chunks, which a library reads one by one to find its size."""

    target: Target
    name: str = "pictures"

    async def strike(self, _n: int) -> str:
        picture = {
            "b64": base64.b64encode(PICTURE).decode(),
            "media_type": "image/png",
            "width": _SIDE,
            "height": _SIDE,
        }
        async with self.target.http(timeout=90) as http:
            secret = secrets.token_bytes(32)
            await self.target.stranger(self.name, http, AMPLE, secret)
            client = Client(
                str(http.base_url),
                http=http,
                wallet_key="0x" + secret.hex(),
                gateways=(_NOBODY,),
                addresses=self.target.book,
                environment={},
            )
            outcome = "waited for"
            with anyio.move_on_after(_TIMEOUT_S):
                try:
                    async with client:
                        prepared = await client.prepare(
                            MODELS[2].name,
                            {"prompt": "a house", "reference_images": [picture]},
                            window=f"{SLA_SECONDS}s",
                            rate_in=PIXEL_RATE,
                            rate_out=PIXEL_RATE,
                        )
                        await client.submit(prepared)
                        outcome = (await client.wait(prepared.id, timeout=_TIMEOUT_S)).status
                except SvcError as refused:
                    outcome = str(refused.code)
        return outcome
