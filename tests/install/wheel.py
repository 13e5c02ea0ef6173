"""Install the wheel as users do: one virtual environment for each extra, and one without extras.

    python -m tests.install wheel

Builds the wheel twice, requires identical bytes, and prints the size of each extra. Needs a registry of Python
packages, or a filled cache.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# Extra: its program, its package.
EXTRAS: Final = {
    "client": ("svc", "svc"),
    "provider": ("svcd", "svcd"),
    "coordinator": ("coordinatord", "coordinatord"),
}
_TOOLS: Final = ("pip", "setuptools", "wheel")
# By program: an additional extra that a part of it needs. Both extras are installed together.
BESIDE: Final = {"svc": ("serve", "svc.serve"), "coordinatord": ("market", "coordinatord.market")}
_IMPORT_ALL: Final = """
import importlib, pkgutil, sys, warnings
warnings.simplefilter("error")
package = importlib.import_module(sys.argv[1])
assert "site-packages" in package.__file__, package.__file__
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.startswith(tuple(sys.argv[2:])):
        importlib.import_module(name)
print(len(names))
"""


_PAGES: Final = {
    "coordinator": """
from coordinatord.api.pages.files import market_page_files, operators_page_files
assert {"index.html", "app.js", "style.css"} <= set(market_page_files())
assert {"/", "/operators.js"} <= set(operators_page_files())
""",
    "provider": """
from svcd.operator.page.provider_page import load_page_files
assert {"/", "/provider.js", "/style.css"} <= set(load_page_files())
""",
    "serve": """
from common.web.files import page_files
assert {"index.html", "ask.js", "page.css", "style.css"} <= set(page_files("svc.serve.page", "static"))
""",
}


class Failed(Exception):
    """The wheel does not contain what its page documents."""


def run(*command: str | Path, status: int = 0) -> str:
    """Run a command outside of the source tree, expect this exit status, and return its output."""
    # Keep the source tree out of the module path, so that only the wheel is used.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)),
        cwd="/",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != status:
        said = done.stdout[-2000:]
        raise Failed(
            f"{' '.join(map(str, command))[:200]} must end with status {status}, not {done.returncode}:\n{said}"
        )
    return done.stdout


def build(folder: Path) -> Path:
    """Run `make wheel` and return the wheel."""
    subprocess.run(
        ["make", "--no-print-directory", "wheel", f"WHEELS={folder}"], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = folder.glob("*-py3-none-any.whl")
    return wheel


def built_alike(folder: Path) -> Path:
    """Build the wheel twice, require identical bytes, and return its folder."""
    one, other = build(folder / "first"), build(folder / "second")
    digests = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (one, other)}
    if one.name != other.name or len(digests) != 1:
        raise Failed(f"two builds of {one.name} must give the same bytes")
    print(f"{one.name}: {one.stat().st_size / 1e6:.1f} MB, sha256 {digests.pop()}, twice")
    return one.parent


def environment(folder: Path) -> Path:
    """Create a virtual environment and return its interpreter."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def installed(python: Path) -> set[str]:
    listed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    names = {line.partition("==")[0] for line in listed.splitlines() if "==" in line and " " not in line}
    return names - set(_TOOLS)


def megabytes(python: Path) -> float:
    """Return the packages' size on disk, without pip."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    own = {
        tool
        for tool in packages.iterdir()
        if tool.name.partition("-")[0] in (*_TOOLS, "_distutils_hack", "pkg_resources")
    }
    files = (file for entry in packages.iterdir() if entry not in own for file in (entry, *entry.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def try_extra(extra: str, wheels: Path, folder: Path) -> None:
    """Install the extra's lock. The program must start, and every module must import."""
    program, package = EXTRAS[extra]
    python = environment(folder / extra)
    install(python, "--require-hashes", "-r", ROOT / "config" / f"requirements-{extra}.lock")
    locked = installed(python)
    install(python, "--find-links", wheels, f"sealed-job-coordinator[{extra}]")
    if more := installed(python) - locked - {"sealed-job-coordinator"}:
        raise Failed(f"config/requirements-{extra}.lock must bring what the extra asks for; it lacks {sorted(more)}")
    run(python.with_name(program), "--help")
    beside = BESIDE.get(package)
    modules = run(python, "-I", "-c", _IMPORT_ALL, package, *(beside[1:] if beside else ())).strip()
    if extra in _PAGES:
        run(python, "-I", "-c", _PAGES[extra])
    run(python, "-m", "pip", "check", "--disable-pip-version-check")
    print(f"[{extra}] {len(locked)} packages, {megabytes(python):.0f} MB: {program} starts, {modules} modules import")


def try_beside(extra: str, wheels: Path, folder: Path) -> None:
    """Install the program's lock with that of the additional extra. All modules must import."""
    _, package = EXTRAS[extra]
    more, part = BESIDE[package]
    python = environment(folder / more)
    install(python, "--require-hashes", "-r", ROOT / "config" / f"requirements-{more}.lock")
    locked = installed(python)
    install(python, "--find-links", wheels, f"sealed-job-coordinator[{extra},{more}]")
    if missing := installed(python) - locked - {"sealed-job-coordinator"}:
        raise Failed(f"config/requirements-{more}.lock must bring what the extras ask for; it lacks {sorted(missing)}")
    modules = run(python, "-I", "-c", _IMPORT_ALL, part).strip()
    if more in _PAGES:
        run(python, "-I", "-c", _PAGES[more])
    print(f"[{extra},{more}] {len(locked)} packages, {megabytes(python):.0f} MB: {modules} modules of {part} import")


def try_without(wheels: Path, folder: Path) -> None:
    """Without an extra, each program names the extra that it needs, and `common` can be imported."""
    python = environment(folder / "none")
    install(python, "--find-links", wheels, "sealed-job-coordinator")
    for extra, (program, _) in EXTRAS.items():
        said = run(python.with_name(program), "--help", status=1)
        if f"pip install 'sealed-job-coordinator[{extra}]'" not in said or "Traceback" in said:
            raise Failed(f"{program} must name its extra, and said: {said}")
    run(python, "-I", "-c", "import common.container, common.quotes, common.receipt, common.messages.jobs")
    print(f"[] {len(installed(python)) - 1} packages, {megabytes(python):.0f} MB: each program names its extra")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        try:
            wheels = built_alike(folder)
            try_without(wheels, folder)
            for extra in EXTRAS:
                try_extra(extra, wheels, folder)
            try_beside("client", wheels, folder)
            try_beside("coordinator", wheels, folder)
        except Failed as failure:
            print(f"wheel: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
