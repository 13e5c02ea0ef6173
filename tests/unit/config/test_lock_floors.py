"""Every locked package includes the fixes of known flaws that affect a coordinator, a provider or a client."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

CONFIG = Path(__file__).parents[3] / "config"
LOCKS = tuple(f"requirements-{part}.lock" for part in ("coordinator", "market", "provider", "client", "dev"))

# The lowest safe version, and the flaw of older versions.
FLOORS = {
    "aiohttp": ("3.13.3", "answers of a hostile node that exhaust memory (CVE-2025-69223 and its kin)"),
    "certifi": ("2024.7.4", "trusts the withdrawn GLOBALTRUST roots (CVE-2024-39689)"),
    "eth-abi": ("5.0.1", "recursive pointers that exhaust memory when decoded (GHSA-3qwc-47jf-5rf7)"),
    "eth-account": ("0.5.9", "a regular expression that hangs on typed data (CVE-2022-1930)"),
    "h11": ("0.16.0", "chunked bodies whose ends are not checked: request smuggling (CVE-2025-43859)"),
    "h2": ("4.3.0", "headers that split a request (CVE-2025-57804); hypercorn imports it"),
    "idna": ("3.7", "quadratic time on a long host name (CVE-2024-3651)"),
    "pillow": ("12.1.1", "writes out of bounds on crafted images; tests make theirs with it (CVE-2026-25990)"),
    "pygments": ("2.15.0", "a regular expression that hangs (CVE-2022-40896)"),
    "pynacl": ("1.6.2", "a libsodium that takes points outside the main group (CVE-2025-69277)"),
    "python-multipart": ("0.0.34", "forms that cost quadratic time, and names that leave the folder"),
    "requests": ("2.32.4", ".netrc credentials sent to another host (CVE-2024-47081)"),
    "sentry-sdk": ("2.8.0", "the environment, with its secrets, handed to every child process (CVE-2024-40647)"),
    "starlette": ("0.49.1", "a Range header that costs quadratic time (CVE-2025-62727)"),
    "urllib3": ("2.6.3", "decompression bombs, and credentials kept across redirects (CVE-2026-21441)"),
}


def locked(name: str) -> dict[str, list[Version]]:
    """Return the versions that the lock may install, by package. Markers may give a package several."""
    found: dict[str, list[Version]] = {}
    for line in (CONFIG / name).read_text(encoding="utf-8").splitlines():
        match = re.match(r"([a-z0-9.-]+)==([^ ;\\]+)", line)
        if match:
            found.setdefault(match[1], []).append(Version(match[2]))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_no_locked_package_is_below_its_floor(lock: str) -> None:
    versions = locked(lock)
    low = [
        f"{package} {version}: {why}"
        for package, (floor, why) in FLOORS.items()
        for version in versions.get(package, [])
        if version < Version(floor)
    ]
    assert low == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes(lock: str) -> None:
    text = (CONFIG / lock).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-z0-9])", text)
    assert [entry.split("==")[0] for entry in entries if "==" in entry and "--hash=sha256:" not in entry] == []
