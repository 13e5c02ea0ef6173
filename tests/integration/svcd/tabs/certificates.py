"""Self-signed certificates for tests of the direct endpoint."""

import socket
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from svcd.config import TabsTable

# `openssl ca` is used because `openssl req` makes no certificate that has expired.
_SETTINGS: Final = """
[ca]
default_ca = tabs
[tabs]
database = {folder}/index.txt
new_certs_dir = {folder}
default_md = sha256
policy = policy
x509_extensions = extensions
rand_serial = yes
[policy]
commonName = supplied
[extensions]
subjectAltName = {host}
"""


def certificate(folder: Path, host: str = "IP:127.0.0.1", days: int = 1) -> tuple[Path, Path]:
    """Write a certificate that began 30 days ago and ends in `days`, and its key."""
    pem, key, request, settings = (folder / f"{host}{days}.{kind}" for kind in ("pem", "key", "csr", "cnf"))
    settings.write_text(_SETTINGS.format(folder=folder, host=host))
    (folder / "index.txt").write_text("")
    now = datetime.now(UTC)
    start, end = (f"{now + timedelta(days=away):%y%m%d%H%M%SZ}" for away in (-30, days))
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key)
    files = ("-config", settings, "-keyfile", key, "-in", request, "-out", pem)
    for command in (
        ("req", *new_key, "-subj", "/CN=tab", "-out", request),
        ("ca", "-batch", "-selfsign", "-notext", *files, "-startdate", start, "-enddate", end),
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return pem, key


def settings_for(folder: Path, host: str = "IP:127.0.0.1", days: int = 1) -> TabsTable:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pem, key = certificate(folder, host, days)
    url = f"https://127.0.0.1:{port}"
    return TabsTable(listen=("127.0.0.1", port), url=url, certificate=pem, private_key=key)
