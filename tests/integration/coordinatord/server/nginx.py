"""nginx with the documented configuration, on loopback. Uses the binary named by NGINX, the one that `make programs`
fetched, or the system's."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devnet.ports import LOOPBACK, is_port_free, pick_free
from tests.support.programs.found import program

CONF = Path(__file__).parents[4] / "config" / "nginx" / "coordinatord.conf"
NGINX = os.environ.get("NGINX") or program("nginx")


def local(text: str, *, proxy: int, server: int) -> str:
    """Change only addresses (to loopback), TLS (off) and timeouts (shorter)."""
    text = text.replace("127.0.0.1:8402", f"{LOOPBACK}:{server}")
    text = text.replace("client_header_timeout 10s", "client_header_timeout 1s")
    text = text.replace("client_body_timeout 20s", "client_body_timeout 1s")
    text = re.sub(r"\n *(ssl_\w+|listen \[::\]:\d+)[^;]*;", "", text)
    text = re.sub(r"listen 80;", f"listen {LOOPBACK}:{pick_free()};", text)
    return re.sub(r"listen 443[^;]*;", f"listen {LOOPBACK}:{proxy};", text)


def of_one_connection_a_caller(text: str) -> str:
    """Also let callers set their own address."""
    text = text.replace("limit_conn coordinatord_callers 128;", "limit_conn coordinatord_callers 1;")
    return text.replace("server_name", "set_real_ip_from 127.0.0.1; real_ip_header x-real; server_name")


def running(server: int, tmp_path: Path, changed: Callable[[str], str]) -> Iterator[int]:
    """Run a proxy in front of the server at this port. Yield the proxy's port."""
    if NGINX is None:
        pytest.skip("no nginx here; `make programs` fetches it")
    port = pick_free()
    site = tmp_path / "coordinatord.conf"
    text = local(CONF.read_text(encoding="utf-8"), proxy=port, server=server)
    site.write_text(changed(text), encoding="utf-8")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    main = tmp_path / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {tmp_path}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {places} include {site}; }}",
        encoding="utf-8",
    )
    command = (NGINX, "-p", str(tmp_path), "-c", str(main))
    subprocess.run((*command, "-t"), check=True, capture_output=True)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_listening(port)
            yield port
        finally:
            process.terminate()


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + 10
    while is_port_free(port):
        assert time.monotonic() < deadline, "nginx does not listen"
        time.sleep(0.02)
