"""Check common/openapi.json with third-party tools: a linter, and clients generated in TypeScript and Python.

python -m tests.peers.openapi
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.requirements import ROOT, npm, require

HERE: Final = Path(__file__).parent
NPM: Final = HERE / "node_modules" / ".bin"
PYTHON: Final = ROOT / ".venv-openapi" / "bin"
DOCUMENT: Final = ROOT / "common" / "openapi.json"
GENERATED: Final = ROOT / "build" / "openapi"


def _ran(what: str, *command: str | Path) -> None:
    path = os.pathsep.join((str(PYTHON), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(GENERATED)}
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"openapi: {what} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    require(".venv-openapi/.ready", *npm("peers/openapi"))
    shutil.rmtree(GENERATED, ignore_errors=True)
    GENERATED.mkdir(parents=True)
    _ran("redocly lint", NPM / "redocly", "lint", "--config", HERE / "redocly.yaml", DOCUMENT)
    print("redocly: valid and without warnings")
    types, client = GENERATED / "api.d.ts", GENERATED / "client"
    _ran("openapi-typescript", NPM / "openapi-typescript", DOCUMENT, "-o", types)
    _ran("tsc", NPM / "tsc", "--noEmit", "--strict", types)
    operations = re.findall(r"operations\[", types.read_text())
    print(f"typescript: {len(operations)} operations")
    # A warning is a failure, because the generator omits parts that it cannot read.
    options = ("--config", HERE / "python-client.yaml", "--path", DOCUMENT, "--output-path", client)
    _ran("openapi-python-client", "openapi-python-client", "generate", *options, "--meta", "none", "--fail-on-warning")
    _ran("its import", PYTHON / "python", "-W", "error", "-c", "from client.api.jobs import post_job")
    _ran("compileall", PYTHON / "python", "-m", "compileall", "-q", client)
    modules = [path for path in client.glob("api/*/*.py") if path.name != "__init__.py"]
    print(f"client: {len(modules)} operations")


if __name__ == "__main__":
    main()
