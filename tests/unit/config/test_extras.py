"""The distribution's extras: each one installs exactly the packages that its program imports."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from common.extras import OWN_PACKAGES, missing_extra_message

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS = {"client": "svc", "provider": "svcd", "coordinator": "coordinatord"}
MARKET = "coordinatord/market"  # the extra `market` installs the imports of this folder
# Imported only if their extra is installed.
OPTIONAL = {
    "eth-account": "keystore",
    "sentry-sdk": "sentry",
    "opentelemetry-exporter-otlp-proto-http": "tracing",
    "requests": "tracing",
    "hypercorn": "serve",
    "python-multipart": "serve",
    "segno": "serve",
    "tenacity": "serve",
}
# By package that many distributions share: the one that brings the others.
NAMESPACES = {"opentelemetry": ["opentelemetry-exporter-otlp-proto-http"]}
# anyio imports these by name.
BY_NAME = {"coordinator": {"uvloop"}}
DISTRIBUTIONS = packages_distributions()


def declared(extra: str | None) -> set[str]:
    texts = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.exists():
            return candidate
    return None


@cache
def imported(file: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return found


@cache
def needed(folder: str, *, without: str | None = None) -> dict[str, str]:
    """Return each distribution that the folder's modules import, directly or through project modules, with one
    importing file."""
    found: dict[str, str] = {}
    seen = set((ROOT / without).rglob("*.py")) if without is not None else set()
    waiting = [file for file in (ROOT / folder).rglob("*.py") if "node_modules" not in file.parts and file not in seen]
    seen |= set(waiting)
    while waiting:
        file = waiting.pop()
        for module in imported(file):
            top = module.partition(".")[0]
            if top in OWN_PACKAGES:
                reached = file_of(module)
                if reached is not None and reached not in seen:
                    seen.add(reached)
                    waiting.append(reached)
            elif top not in sys.stdlib_module_names:
                for name in NAMESPACES.get(top) or DISTRIBUTIONS.get(top, [top]):
                    found.setdefault(canonicalize_name(name), str(file.relative_to(ROOT)))
    return found


def locked(extra: str) -> dict[str, str]:
    text = (ROOT / "config" / f"requirements-{extra}.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", text, re.MULTILINE))


@pytest.mark.parametrize("extra", PROGRAMS)
def test_extra_installs_exactly_its_programs_imports(extra: str) -> None:
    imports = needed(PROGRAMS[extra], without=MARKET)
    brought = declared(None) | declared(extra)
    assert {name: file for name, file in imports.items() if name not in brought | OPTIONAL.keys()} == {}
    assert declared(extra) - imports.keys() == BY_NAME.get(extra, set())


def test_only_the_market_extra_installs_its_imports() -> None:
    imports, brought = needed(MARKET), declared(None) | declared("market")
    assert {name: file for name, file in imports.items() if name not in brought} == {}
    assert declared("market") - imports.keys() == set()


def test_base_distribution_has_the_packages_of_common() -> None:
    everywhere = set.intersection(*(set(needed(package, without=MARKET)) for package in PROGRAMS.values()))
    assert declared(None) <= everywhere


def test_optional_packages_have_the_extra_that_the_pages_name() -> None:
    assert {name: extra for name, extra in OPTIONAL.items() if name in declared(extra)} == OPTIONAL


@pytest.mark.parametrize("extra", [*PROGRAMS, "market", "tracing"])
def test_extras_lock_has_the_tested_versions(extra: str) -> None:
    packages = locked(extra)
    assert (declared(None) | declared(extra)) - packages.keys() == set()
    assert packages.items() - locked("dev").items() == set()


def test_missing_package_names_its_extra() -> None:
    told = missing_extra_message(ModuleNotFoundError("No module named 'trio'", name="trio"), "svcd", "provider")
    assert told.startswith("svcd: the Python package trio must be installed")
    assert told.endswith("pip install 'sealed-job-coordinator[provider]'")
    fault = ModuleNotFoundError("No module named 'svcd.gone'", name="svcd.gone")
    with pytest.raises(ModuleNotFoundError, match=r"svcd\.gone"):
        missing_extra_message(fault, "svcd", "provider")
