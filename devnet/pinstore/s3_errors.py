"""The refusals of the S3 interface, and answers that are documents."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from xml.sax.saxutils import escape

import attrs
from aiohttp import web

_STATUS: Final = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "BadDigest": 400,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IncompleteBody": 400,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "XAmzContentSHA256Mismatch": 400,
}


@attrs.frozen
class S3Error(Exception):
    """A refusal; `code` is one of the interface's own and decides the status."""

    code: str
    message: str

    @property
    def status(self) -> int:
        return _STATUS[self.code]

    def response(self, resource: str, *, with_body: bool = True) -> web.Response:
        document = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message>"
            f"<Resource>{escape(resource)}</Resource></Error>"
        )
        return xml(document if with_body else "", self.status)


def xml(document: str, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    return web.Response(body=document.encode(), status=status, headers={"content-type": "application/xml", **headers})
