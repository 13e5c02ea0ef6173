"""SigV4 signatures of S3 requests. Only botocore's signer is used: its client is synchronous and heavy."""

from typing import Any

import attrs
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

from coordinatord.secret import Secret


@attrs.frozen(slots=True)
class _Credentials:
    """The three attributes that the signer looks at."""

    access_key: str = attrs.field(repr=False)
    secret_key: str = attrs.field(repr=False)
    token: str | None = None


class _Auth(S3SigV4Auth):  # type: ignore[misc] # botocore publishes no types
    """Takes the payload's hash from the request's context: large payloads are hashed as they come in."""

    def payload(self, request: Any) -> str:
        digest: bytes = request.context["sha256"]
        return digest.hex()


class Signer:
    def __init__(self, access_key: Secret, secret_key: Secret, region: str) -> None:
        credentials = _Credentials(access_key.reveal(), secret_key.reveal())
        self._signer = _Auth(credentials, "s3", region)

    def headers(self, method: str, url: str, sha256: bytes) -> dict[str, str]:
        """The headers that authorise this very request, for the next minutes. `sha256` is that of its content."""
        request = AWSRequest(method=method, url=url)
        request.context["sha256"] = sha256
        self._signer.add_auth(request)
        return dict(request.headers.items())
