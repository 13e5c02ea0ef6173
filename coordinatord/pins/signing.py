"""SigV4 signatures of S3 requests. Only botocore's signer is used: its client is synchronous and heavy."""

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


class Signer:
    def __init__(self, access_key: Secret, secret_key: Secret, region: str) -> None:
        credentials = _Credentials(access_key.reveal(), secret_key.reveal())
        self._signer = S3SigV4Auth(credentials, "s3", region)

    def headers(self, method: str, url: str, content: bytes) -> dict[str, str]:
        """The headers that authorise this very request, for the next minutes. Hashes `content`."""
        request = AWSRequest(method=method, url=url, data=content)
        self._signer.add_auth(request)
        return dict(request.headers.items())
