"""Build both images with buildah, start the daemons in them, and buy a job that passes through both.

No registry is used. A Debian made by debootstrap gets the name of the base image, and pip installs from a folder of
wheels that were downloaded here. Both folders are kept in build/images, and the images are not.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx
import pytest

from devnet.ports import pick_free
from devnet.provider import key_variables, write_config
from devnet.world import World
from svc import SyncClient
from tests.e2e.conftest import descendants

PROJECT = Path(__file__).parents[2]
CONTAINERFILES = PROJECT / "config" / "containers"
KEPT = PROJECT / "build" / "images"
TOOLS = ("buildah", "debootstrap", "git")
# Files are copied instead of mounted, which works on every file system.
BUILDAH = ("buildah", "--root", f"{KEPT}/storage", "--runroot", f"{KEPT}/run", "--storage-driver", "vfs")
PIP_SETTINGS = "[global]\nno-index = true\nfind-links = /wheels\n"
START_SECONDS = 120
USER_ID = 65532

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
        reason=f"images are built by root, with {', '.join(TOOLS)}",
    ),
]


def buildah(*arguments: str, stdin: bytes | None = None) -> str:
    done = subprocess.run([*BUILDAH, *arguments], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4_000:]
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """Name of the base image of both Containerfiles."""
    texts = [(CONTAINERFILES / f"{daemon}.Containerfile").read_text() for daemon in ("coordinatord", "svcd")]
    (name,) = {name for text in texts for name in re.findall(r"^FROM (\S+)", text, re.MULTILINE)}
    root = KEPT / "base"
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        release = name.rpartition("-")[2]
        options = ("--variant=minbase", "--include=python3,python3-venv")
        subprocess.run(["debootstrap", *options, release, root], check=True, capture_output=True)
    container = buildah("from", "scratch")
    buildah("add", container, str(root), "/")
    buildah("commit", "--rm", container, name)
    yield name
    buildah("rm", "--all")
    buildah("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def wheels(base: str) -> Path:
    python = re.findall(r"python:([\d.]+)-", base)[0]
    target = ("--only-binary", ":all:", "--python-version", python, "--dest", str(KEPT / "wheels"))
    download = [sys.executable, "-m", "pip", "download", "-qq", *target]
    for lock in ("market", "provider"):
        subprocess.run([*download, "--require-hashes", "-r", PROJECT / f"config/requirements-{lock}.lock"], check=True)
    build_tool = re.findall(
        r'^requires = \["(hatchling==[\d.]+)"\]', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE
    )
    subprocess.run([*download, *build_tool], check=True)
    return KEPT / "wheels"


@attrs.frozen
class Container:
    """Container of an image on this machine's network. `folder` is at the same path inside."""

    name: str
    command: Sequence[str]
    health_check: Sequence[str]
    folder: Path
    environment: dict[str, str]

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Run a command, or the image's own one."""
        variables = [f"--env={name}={value}" for name, value in self.environment.items()]
        options = ("run", "--isolation", "chroot", f"--volume={self.folder}:{self.folder}", *variables)
        words = [*BUILDAH, *options, self.name, "--", *(command or self.command)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def output(self, *command: str) -> str:
        with self.start(*command) as process:
            printed, _ = process.communicate()
        assert process.returncode == 0
        return printed.strip()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the image's command until its health check passes, and stop it with SIGTERM afterwards."""
        with self.start() as process:
            try:
                self._wait_until_healthy(process)
                yield
                # buildah does not pass signals on. The daemon is the only process without children.
                (daemon,) = [pid for pid in descendants(process.pid) if not descendants(pid)]
                assert f"\nUid:\t{USER_ID}\t" in Path(f"/proc/{daemon}/status").read_text()
                os.kill(daemon, signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()

    def _wait_until_healthy(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with self.start(*self.health_check) as check:
                if check.wait() == 0:
                    return
            assert process.poll() is None, f"{self.name} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{self.name} is not healthy after {START_SECONDS} s"


Create = Callable[[str, Path, dict[str, str]], Container]


@pytest.fixture(scope="module")
def create(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Create:
    """Build the image of a daemon, and return a container of it."""
    settings = tmp_path_factory.mktemp("pip") / "pip.conf"
    settings.write_text(PIP_SETTINGS)
    settings.parent.chmod(0o755)

    def built(daemon: str, folder: Path, environment: dict[str, str]) -> Container:
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True).stdout
        archive = ("tar", "--create", "--null", "--files-from=-")
        context = subprocess.run(archive, cwd=PROJECT, input=tracked, capture_output=True, check=True).stdout
        volumes = (f"--volume={wheels}:/wheels:ro", f"--volume={settings}:/etc/pip.conf:ro")
        options = ("--isolation", "chroot", "--format", "docker", "--pull-never", *volumes)
        file = f"config/containers/{daemon}.Containerfile"
        buildah("build", *options, "--file", file, "--tag", daemon, "-", stdin=context)
        config = json.loads(buildah("inspect", "--type", "image", daemon))["Docker"]["config"]
        assert config["User"] == f"{USER_ID}:{USER_ID}"
        command = [*config["Entrypoint"], *config["Cmd"]]
        check = config["Healthcheck"]["Test"][1:]
        return Container(buildah("from", daemon), command, check, folder, environment)

    return built


@pytest.fixture
def shared() -> Iterator[Path]:
    """Folder that belongs to the user of the images."""
    folder = Path(tempfile.mkdtemp(prefix="images-"))
    os.chown(folder, USER_ID, USER_ID)
    yield folder
    shutil.rmtree(folder)


def test_job_passes_through_both_images(world: World, database_url: str, create: Create, shared: Path) -> None:
    port, metrics_port = pick_free(), pick_free()
    config = write_config(
        shared,
        coordinator_url=f"http://127.0.0.1:{port}",
        rpc_url=world.anvil.rpc_url,
        gateway=world.pins.gateway,
        address_book=world.market.address_book,
        metrics_port=metrics_port,
    )
    keystore, password = shared / "relayer.json", shared / "relayer_keystore_password"
    owner_key = shared / "owner.key"
    password.write_text("only a test")
    owner_key.write_text(world.wallets.admin.private_key)
    for file in shared.iterdir():
        file.chmod(0o600)
        os.chown(file, USER_ID, USER_ID)
    coordinator = create(
        "coordinatord",
        shared,
        {
            **{"ADDRESSES_FILE": str(shared / "addresses.json"), "DATABASE_URL": database_url},
            **{"RELAYER_KEYSTORE": str(keystore), "CREDENTIALS_DIRECTORY": str(shared)},
            **{"RPC_URL": world.anvil.rpc_url, "PORT": str(port), "METRICS_PORT": "0", "BLOCK_TIME_MS": "100"},
            **{"PIN_STORE": world.pins.kind, "PIN_STORE_ENDPOINT": world.pins.endpoint},
            **{"PIN_STORE_KEY": world.pins.key, "PIN_STORE_SECRET": world.pins.secret},
            **{"PIN_STORE_BUCKET": world.pins.bucket, "PIN_STORE_REGION": world.pins.region},
        },
    )
    market = (coordinator.command[0], "market")
    relayer = coordinator.output(*market, "new-key", "--out", str(keystore), "--password-file", str(password))
    owner = ("--key-file", str(owner_key), "--confirmations", "1", "--poll", "0.1")
    coordinator.output(*market, "admin", "grant-relayer", relayer, *owner)
    request = {"jsonrpc": "2.0", "id": 1, "method": "anvil_setBalance", "params": [relayer, hex(10**19)]}
    httpx.post(world.anvil.rpc_url, json=request, trust_env=False).raise_for_status()

    image = create("svcd", shared, key_variables(world.wallets.demo_provider))
    provider = attrs.evolve(
        image,
        command=[word.replace("/etc/svcd/svcd.toml", str(config)) for word in image.command],
        health_check=[word.replace("9403", str(metrics_port)) for word in image.health_check],
    )
    with coordinator.running(), provider.running():
        client = SyncClient(
            f"http://127.0.0.1:{port}",
            wallet_key=world.wallets.with_role("client")[0].private_key,
            gateways=[world.pins.gateway],
            known_markets=None,
            on_first_use=lambda _: None,
            environment={},
        )
        with client:
            # With explicit rates, the order does not depend on asks, which the provider may not have published yet.
            bid = {"provider": 1, "rate_in": 100_000, "rate_out": 200_000}
            result = client.run("demo/text-small", "through both images", window="1h", **bid, timeout=120, final=True)
        assert result.output == {"input": "through both images"}
