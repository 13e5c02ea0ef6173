"""Run coordinators as their systemd units start them, on a folder that represents the machine's root."""

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import attrs
import httpx

from devnet.ports import pick_free
from devnet.postgres import find_binaries
from devnet.world import World
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.party import Body
from tests.integration.coordinatord.scene.stage import environment, until
from tests.support.fakes import service_manager
from tests.support.fakes.page_shell import PageShell, chapter

PROJECT = Path(__file__).parents[4]
PAGE = PROJECT / "docs" / "operators" / "maintenance.md"
SECRETS = ("DATABASE_URL", "RELAYER_KEY", "PIN_STORE_KEY", "PIN_STORE_SECRET", "OPERATOR_KEY")

_SPARE: Final = 3


@attrs.frozen
class Deployment:
    """`follow` runs a chapter's blocks one by one, and returns what each printed."""

    root: Path
    shell: PageShell
    http: httpx.AsyncClient
    load: Load
    spare: list[Body]

    async def buy(self) -> None:
        """Buy one job. It is posted on return."""
        with anyio.fail_after(60):
            await self.load.submit([self.spare.pop()])

    async def follow(self, block: str) -> str:
        return await anyio.to_thread.run_sync(self.shell.run, block)

    def credential(self, name: str) -> str:
        return (self.root / "etc/coordinatord/credentials" / name).read_text().strip()

    def credentials(self) -> set[str]:
        return {file.name for file in (self.root / "etc/coordinatord/credentials").iterdir()}


StartDeployment = Callable[..., AbstractAsyncContextManager[Deployment]]


def lay_out(root: Path, world: World, settings: dict[str, str]) -> None:
    """Create files as the installation page does."""
    configuration, units = root / "etc" / "coordinatord", root / "etc" / "systemd" / "system"
    credentials = configuration / "credentials"
    for folder in (credentials, units, root / "opt/coordinatord/bin"):
        folder.mkdir(parents=True)
    for unit in (PROJECT / "systemd").glob("coordinatord*.service"):
        shutil.copy(unit, units)
    for name in ("coordinatord.service", "coordinatord@.service"):
        drop_in = units / f"{name}.d" / "escrow.conf"
        drop_in.parent.mkdir()
        drop_in.write_text("[Service]\nLoadCredential=operator_key:/etc/coordinatord/credentials/operator_key\n")
    for name in SECRETS:
        (credentials / name.lower()).write_text(settings[name] + "\n")
    (configuration / "addresses.json").write_text(json.dumps(world.market.address_book))
    settings = settings | {"ADDRESSES_FILE": str(configuration / "addresses.json")}
    plain = {name: value for name, value in settings.items() if name not in (*SECRETS, "ADDRESSES_JSON")}
    (configuration / "coordinatord.env").write_text("".join(f"{name}={value}\n" for name, value in plain.items()))
    (root / "opt/coordinatord/bin/coordinatord").symlink_to(Path(sys.executable).with_name("coordinatord"))


@asynccontextmanager
async def run_deployment(
    folder: Path,
    setup: MarketSetup,
    *,
    variables: dict[str, str],
    processes: int,
    posts: int,
    changed: dict[str, object],
) -> AsyncIterator[Deployment]:
    """Run units that serve one port, with clients that post until the end. Then check every promise."""
    world = setup.world
    root, tools = folder / "root", folder / "tools"
    tools.mkdir()
    port, units = pick_free(), [f"coordinatord@{pick_free()}" for _ in range(processes)]
    settings = environment(world, setup.database_url, PORT=port, OPERATOR_KEY="0a" * 32, ESCROW_MODE="static")
    lay_out(root, world, settings | {name: str(value) for name, value in changed.items()})
    service_manager.install(tools, root)
    url = f"http://127.0.0.1:{port}"
    owner = folder / "owner.key"
    owner.write_text(world.wallets.admin.private_key)
    owner.chmod(0o600)
    signs = f"--key-file {owner} --addresses {root}/etc/coordinatord/addresses.json --confirmations 1 --poll 0.05"
    shell = PageShell(
        root,
        {
            "PATH": f"{tools}:{find_binaries()}:{os.environ['PATH']}",
            **{"UNITS": " ".join(units), "URL": url, "OWNER_SIGNS": signs, "RPC_URL": world.anvil.rpc_url},
            **variables,
        },
    )
    try:
        await anyio.to_thread.run_sync(shell.run, f"systemctl start {' '.join(units)}")
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
            await until(lambda: http.get("/readyz"), 200)
            load = Load([url])
            bodies = await submissions(setup.party(http), _SPARE + posts)
            deployment = Deployment(root, shell, http, load, bodies[:_SPARE])
            (before,) = chapter(PAGE, "Before")
            await deployment.follow(before)
            async with anyio.create_task_group() as clients:
                clients.start_soon(_post_slowly, load, bodies[_SPARE:])
                yield deployment
                with anyio.fail_after(60):
                    await load.until_posted(len(bodies) - len(deployment.spare))
        assert load.unspecified() == []
        assert await setup.violations(load.posted) == []
    finally:
        await anyio.to_thread.run_sync(service_manager.stop_all)


async def _post_slowly(load: Load, bodies: list[Body]) -> None:
    """Post at intervals, so that every step of a chapter sees some posts."""
    for body in bodies:
        await load.submit([body])
        await anyio.sleep(0.5)
