"""SigV4 signatures of S3 requests.

    signature       = HMAC-SHA256(key, "AWS4-HMAC-SHA256" ⏎ time ⏎ scope ⏎ hex(sha256(request)))
    scope           = date / region / s3 / aws4_request
    key             = the secret, and then each part of the scope, by HMAC one after another: the same for a day
    request         = method ⏎ path ⏎ query, in order of names ⏎ signed headers ⏎ ⏎ their names ⏎ hex(sha256(content))

A batch signs a request for every line: botocore's signer takes ten times as long, and is the oracle of the tests.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from coordinatord.secret import Secret

_SIGNED: Final = "host;x-amz-content-sha256;x-amz-date"
_OWN_PORTS: Final = {"http": ":80", "https": ":443"}  # clients leave them out of the header


class Signer:
    def __init__(
        self, access_key: Secret, secret_key: Secret, region: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._region = region
        self._clock = clock
        self._date, self._key = "", b""

    def headers(self, method: str, url: str, sha256: bytes) -> dict[str, str]:
        """The headers that authorise this very request, for the next minutes. `sha256` is that of its content. The
        path and the query of `url` are quoted, and every parameter has its `=`."""
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        parts, content = urlsplit(url), sha256.hex()
        host = parts.netloc.removesuffix(_OWN_PORTS.get(parts.scheme, ""))
        query = "&".join(sorted(parts.query.split("&")))
        headers = f"host:{host}\nx-amz-content-sha256:{content}\nx-amz-date:{at}\n"
        request = f"{method}\n{parts.path}\n{query}\n{headers}\n{_SIGNED}\n{content}"
        scope = f"{at[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._key_of(at[:8]), text).hex()
        credential = f"Credential={self._access_key.reveal()}/{scope}"
        return {
            "x-amz-date": at,
            "x-amz-content-sha256": content,
            "authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={_SIGNED}, Signature={signature}",
        }

    def _key_of(self, date: str) -> bytes:
        if self._date != date:
            key = _hmac(b"AWS4" + self._secret_key.reveal().encode(), date)
            self._date, self._key = date, _hmac(_hmac(_hmac(key, self._region), "s3"), "aws4_request")
        return self._key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
