"""Read the certificate of the direct endpoint, and check that it is valid for the published address."""

import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs

from common.daemon.process import Fatal
from svcd.config import TabsTable

_PEM_CERTIFICATE_PATTERN: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_CERTIFICATE_CHARS: Final = 16_384


@attrs.frozen(slots=True)
class PublishedEndpoint:
    """URL and certificate (PEM) of the direct endpoint. A tab's owner gets both in the `welcome` message."""

    url: str
    certificate: str = attrs.field(repr=False)


def read_endpoint(settings: TabsTable) -> PublishedEndpoint:
    """Return the published endpoint with the first certificate of the file. Raise `Fatal` without a certificate."""
    found = _PEM_CERTIFICATE_PATTERN.search(_read_file(settings.certificate))
    if found is None or len(found[0]) > _MAX_CERTIFICATE_CHARS:
        limit = f"at most {_MAX_CERTIFICATE_CHARS} characters"
        raise Fatal(f"tabs.certificate: {settings.certificate} contains no PEM certificate of {limit}")
    return PublishedEndpoint(settings.url.rstrip("/"), found[0])


def server_context(settings: TabsTable) -> ssl.SSLContext:
    """Return the TLS settings of the server. Raise `Fatal` if the certificate and its key cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.certificate, settings.private_key, password=lambda: "")
    except OSError as error:  # including ssl.SSLError
        reason = error.strerror or type(error).__name__
        raise Fatal(f"tabs.certificate and tabs.private_key cannot be used together: {reason}") from None
    return context


def client_context(certificate: str) -> ssl.SSLContext:
    """Return the TLS settings that an owner's client uses. They trust only `certificate`."""
    context = ssl.create_default_context(cadata=certificate)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def find_certificate_fault(settings: TabsTable) -> str | None:
    """Return why owners would reject the certificate (wrong host, expired, not yet valid), or None if it is valid.

    The check is a TLS handshake in memory. Raise `Fatal` if the files cannot be used.
    """
    server_in, server_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(settings).wrap_bio(server_in, server_out, server_side=True)
    owner = client_context(read_endpoint(settings).certificate)
    client = owner.wrap_bio(server_out, server_in, server_hostname=urlsplit(settings.url).hostname)
    for _ in range(8):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as refused:
                return refused.verify_message
            except ssl.SSLError as failed:
                return failed.reason or str(failed)
            if side is client:
                return None
    return "the TLS handshake did not finish"


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise Fatal(f"tabs.certificate: {path} cannot be read ({error.strerror})") from None
