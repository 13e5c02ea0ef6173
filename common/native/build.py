"""Compiles `signatures.c` when the package is built, into a library that no Python version is tied to.

Without a C compiler the package is built without it: everything works, and checks of signatures share the
interpreter's lock.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).with_name("signatures.c")
LIBRARY = SOURCE.with_suffix(".so")


def compiler() -> str | None:
    asked = os.environ.get("CC")
    return shutil.which(asked) if asked else shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def compile_library(target: Path = LIBRARY, *more_flags: str) -> str | None:
    """Why there is no library, or None when it was made."""
    found = compiler()
    if found is None:
        return "no C compiler was found (set CC to name one)"
    flags = ["-std=c11", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC"]
    made = target.with_suffix(".new")  # a process that has the old one loaded keeps it
    done = subprocess.run([found, *flags, *more_flags, "-o", made, SOURCE], check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        return f"{found} failed: {done.stderr.strip()}"
    made.replace(target)
    return None


class CompileSignatures(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        error = compile_library()
        if error is not None:
            self.app.display_warning(f"signatures are checked without the compiled library: {error}")
            return
        build_data["artifacts"].append(f"common/native/{LIBRARY.name}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
