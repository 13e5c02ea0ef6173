"""HTTP to loopback services. Skips loading certificates for thousands of short-lived clients."""

import ssl
from typing import Final

import httpx

_NOBODY_TRUSTED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def plain_http(base_url: str = "", *, timeout: float = 30) -> httpx.AsyncClient:  # the client's own, per request
    return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=timeout, verify=_NOBODY_TRUSTED)
