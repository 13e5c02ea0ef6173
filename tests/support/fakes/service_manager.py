"""Imitates the parts of systemd that the project's units and pages use, with a folder as the machine's root.

    python -m tests.support.fakes.service_manager systemctl start|stop|restart|enable|… UNIT...
    python -m tests.support.fakes.service_manager systemd-run --pipe --property=... COMMAND...

SERVICE_ROOT is the folder. Units and drop-ins are in its etc/systemd/system. EnvironmentFile is read, LoadCredential
copies files for the service alone, a Type=notify service has started when it notifies, and stopping is SIGTERM and a
wait. SERVICE_USER is the numeric user of services (default: the caller). Confinement, such as ProtectSystem, is not
imitated.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SECONDS: Final = 60.0
_NOTICES: Final = ("daemon-reload", "enable", "disable")
Settings = dict[str, list[str]]


class Failed(Exception):
    """The service did not start, or the unit does not exist."""


def root() -> Path:
    return Path(os.environ["SERVICE_ROOT"])


def unit_settings(name: str) -> Settings:
    """Return the settings of a unit and its drop-ins, each with its values in order. An instance reads its template."""
    name = name.removesuffix(".service")
    template, at, instance = name.partition("@")
    units = root() / "etc" / "systemd" / "system"
    file = units / f"{template}{at}.service"
    if not file.exists():
        raise Failed(f"Unit {name}.service not found.")
    settings: Settings = {}
    for source in (file, *sorted((units / f"{file.name}.d").glob("*.conf"))):
        for line in source.read_text(encoding="utf-8").splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.startswith(("#", ";")):
                value = value.replace("%i", instance)
                settings[key] = [*settings.get(key, []), value] if value else []
    return settings


def environment_of(settings: Settings) -> dict[str, str]:
    environment = {"PATH": os.environ["PATH"]}
    for path in settings.get("EnvironmentFile", []):
        for line in inside(path).read_text(encoding="utf-8").splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                environment[name.strip()] = value.strip().strip("\"'")
    return environment


def inside(path: str) -> Path:
    """Return the unit's file below the folder. A path that is already below it is unchanged."""
    return Path(path) if Path(path).is_relative_to(root()) else root() / path.lstrip("/")


def credentials_of(settings: Settings, name: str) -> dict[str, str]:
    """Copy the credentials to a folder that only the service reads."""
    loaded = settings.get("LoadCredential", [])
    if not loaded:
        return {}
    folder = root() / "run" / "credentials" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for passed in (folder.parent, folder.parent.parent):
        passed.chmod(0o755)  # independent of the caller's umask
    folder.mkdir(mode=0o700)
    for credential in loaded:
        identifier, _, path = credential.partition(":")
        copy = folder / identifier
        try:
            shutil.copyfile(inside(path), copy)
        except FileNotFoundError:
            raise Failed(f"{name}: Failed to set up credentials: {path}: No such file or directory") from None
        copy.chmod(0o400)
    if (user := service_user()) is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, user, user)
    return {"CREDENTIALS_DIRECTORY": str(folder)}


def state_of(settings: Settings) -> dict[str, str]:
    folders = [root() / "var" / "lib" / name for name in settings.get("StateDirectory", [])]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for passed in (folder.parent, folder.parent.parent):
            passed.chmod(0o755)
        folder.chmod(int(settings.get("StateDirectoryMode", ["0755"])[0], 8))
        if (user := service_user()) is not None:
            os.chown(folder, user, user)
    return {"STATE_DIRECTORY": ":".join(map(str, folders))} if folders else {}


def service_user() -> int | None:
    text = os.environ.get("SERVICE_USER", "")
    return int(text) if text else None


def command_of(settings: Settings) -> list[str]:
    words = shlex.split(settings["ExecStart"][-1])
    program = words[2] if words[0].endswith("/env") else words[0]  # `env NAME=value program`
    return [str(inside(word)) if word == program or word.startswith("/etc/") else word for word in words]


def start(name: str) -> None:
    name = name.removesuffix(".service")
    if is_running(name):
        return
    settings = unit_settings(name)
    environment = environment_of(settings) | credentials_of(settings, name) | state_of(settings)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    address = f"service-manager-{os.getpid()}-{time.monotonic_ns()}"
    notify.bind(f"\0{address}")
    notify.settimeout(0.1)
    with notify, log_of(name).open("ab") as log:
        process = subprocess.Popen(
            command_of(settings),
            env=environment | {"NOTIFY_SOCKET": f"@{address}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=service_user(),
            group=service_user(),
            extra_groups=[] if service_user() is not None else None,
            cwd="/",
        )
        if settings.get("Type") == ["oneshot"]:
            if process.wait() != 0:
                raise Failed(f"{name}: Main process exited with status {process.returncode}\n{last_lines(name)}")
            return
        pid_file(name).write_text(str(process.pid))
        deadline = time.monotonic() + _SECONDS
        while not says_ready(notify):
            if process.poll() is not None:
                pid_file(name).unlink()
                raise Failed(f"{name}: Main process exited with status {process.returncode}\n{last_lines(name)}")
            if time.monotonic() > deadline:
                raise Failed(f"{name}: start operation timed out")


def says_ready(notify: socket.socket) -> bool:
    try:
        return b"READY=1" in notify.recv(4096).split(b"\n")
    except TimeoutError:
        return False


def stop(name: str) -> None:
    """Send SIGTERM and wait until the process ends or is a zombie."""
    name = name.removesuffix(".service")
    if not is_running(name):
        return
    pid = int(pid_file(name).read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _SECONDS
    while is_running(name):
        if time.monotonic() > deadline:
            raise Failed(f"{name}: stop operation timed out")
        time.sleep(0.02)
    pid_file(name).unlink(missing_ok=True)


def is_running(name: str) -> bool:
    try:
        status = Path(f"/proc/{int(pid_file(name).read_text())}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def pid_file(name: str) -> Path:
    folder = root() / "run" / "units"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.removesuffix('.service')}.pid"


def log_of(name: str) -> Path:
    folder = root() / "var" / "log"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def last_lines(name: str) -> str:
    return log_of(name).read_text(encoding="utf-8", errors="replace")[-2000:]


def stop_all() -> None:
    """Stop all processes of the units. Tests call this at their end."""
    for file in (root() / "run" / "units").glob("*.pid"):
        stop(file.stem)


def systemctl(words: Sequence[str]) -> None:
    verb, *names = [word for word in words if not word.startswith("-")]
    now = "--now" in words
    for name in names:
        if not name.endswith((".service", ".target")) and verb not in _NOTICES:
            unit_settings(name)
        match verb:
            case "start":
                start(name)
            case "stop":
                stop(name)
            case "restart":
                stop(name)
                start(name)
            case "enable" if now:
                start(name)
            case "is-active":
                if not is_running(name):
                    raise Failed("inactive")
            case _ if verb not in _NOTICES:
                raise Failed(f"Unknown command verb {verb}.")


def systemd_run(words: Sequence[str]) -> int:
    """Run a transient service with the caller's input and output. Return its exit status."""
    settings: Settings = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if found := re.fullmatch(r"--property=(\w+)=(.*)", option):
            settings.setdefault(found[1], []).append(found[2])
        elif option not in ("--pipe", "--quiet", "--wait", "--collect"):
            raise Failed(f"systemd-run: {option} is not imitated")
    environment = environment_of(settings) | credentials_of(settings, f"run-{os.getpid()}")
    user = service_user() if "DynamicUser" in settings else None
    groups: list[int] | None = [] if user is not None else None
    command = [str(inside(rest[0])), *rest[1:]]
    return subprocess.run(
        command, env=environment, user=user, group=user, extra_groups=groups, cwd="/", check=False
    ).returncode


def main() -> int:
    program, *words = sys.argv[1:]
    try:
        if program == "systemd-run":
            return systemd_run(words)
        systemctl(words)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def install(folder: Path, service_root: Path, user: int | None = None) -> None:
    """Install programs `systemctl` and `systemd-run` in `folder` that act on the services below `service_root`."""
    project = Path(__file__).parents[3]
    for program in ("systemctl", "systemd-run"):
        script = folder / program
        script.write_text(
            f"#!/bin/sh\nSERVICE_ROOT={shlex.quote(str(service_root))} SERVICE_USER={'' if user is None else user}"
            f" PYTHONPATH={shlex.quote(str(project))} exec {shlex.quote(sys.executable)}"
            f' -m tests.support.fakes.service_manager {program} "$@"\n'
        )
        script.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
