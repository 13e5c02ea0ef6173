"""Rules for Containerfiles that need no image build. Each rule is shown to find a violation."""

import itertools
import json
import re
import shlex
import tomllib
from pathlib import Path

import attrs
import pytest

from common.settings.reader import settings_of
from coordinatord.run.config import Config
from tests.install.locks import PYTHONS
from tests.support.fakes.page_shell import BLOCK, chapter

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "config" / "containers"
PAGE = ROOT / "docs" / "operators" / "containers.md"
STEPS = {
    "coordinatord": (ROOT / "docs/operators/install.md", "The program"),
    "svcd": (ROOT / "docs/providers/quickstart.md", "Install"),
}
DAEMONS = sorted(STEPS)
SECRETS = {each.name.upper() for each in settings_of(Config) if each.secret}
KNOWN = {
    "FROM",
    "RUN",
    "COPY",
    "WORKDIR",
    "ENV",
    "USER",
    "EXPOSE",
    "VOLUME",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}
IMAGE = re.compile(r"[a-z0-9.-]+\.[a-z]+/[a-z0-9/-]+:(?P<tag>[\w.-]+)(@sha256:[0-9a-f]{64})?")


@attrs.frozen
class Instruction:
    word: str
    rest: str


def text_of(daemon: str) -> str:
    return (FOLDER / f"{daemon}.Containerfile").read_text(encoding="utf-8")


def stages(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage, starting with FROM, without comments and line continuations."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                found.append([])
            found[-1].append(Instruction(word, " ".join(rest.split())))
    return found


def faults(text: str) -> list[str]:
    """Return a sentence for each violation."""
    built = stages(text)
    return [*(fault for stage in built for one in stage for fault in faults_of(one)), *faults_of_result(built[-1])]


def faults_of(one: Instruction) -> list[str]:
    """Check one instruction of any stage."""
    match one.word:
        case "FROM":
            image = IMAGE.fullmatch(one.rest.partition(" AS ")[0])
            if image is None or image["tag"] == "latest":
                return [f"{one.rest} must name its registry and its release"]
        case "ENV" if any(f"{name}=" in one.rest for name in SECRETS):
            return ["a secret must not be a variable of the image"]
        case "COPY" if re.search(r"credentials|\.key\b|\.env\b|^\. ", one.rest):
            return [f"COPY {one.rest} may carry secrets"]
        case word if word not in KNOWN:
            return [f"{word} is not wanted here"]
    return []


def faults_of_result(last: list[Instruction]) -> list[str]:
    """Check the stage that becomes the image."""
    found = []
    users = [n for n, one in enumerate(last) if one.word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", last[users[-1]].rest):
        found.append("the last USER must be a number other than root's")
    elif any(one.word in ("RUN", "COPY") for one in last[users[-1] :]):
        found.append("nothing may be written after USER: its owner could change the program")
    if not any(one.word == "HEALTHCHECK" and " CMD " in f" {one.rest}" for one in last):
        found.append("a HEALTHCHECK must say how to see that it lives")
    for word in ("ENTRYPOINT", "CMD"):
        forms = [one.rest for one in last if one.word == word]
        if len(forms) != 1 or not is_list(forms[0]):
            found.append(f"{word} must be a list: a shell in between would take the signals")
    return found


def is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


@pytest.mark.parametrize("daemon", DAEMONS)
def test_containerfile_keeps_every_rule(daemon: str) -> None:
    assert faults(text_of(daemon)) == []


@pytest.mark.parametrize(
    ("instead_of", "put", "told"),
    [
        ("python:3.13-slim-trixie", "python:latest", "must name its registry and its release"),
        ("docker.io/library/python", "python", "must name its registry and its release"),
        ("USER 65532:65532", "USER root", "must be a number other than root's"),
        ("USER 65532:65532\n", "", "must be a number other than root's"),
        ("USER 65532:65532\n", "USER 65532:65532\nRUN true\n", "nothing may be written after USER"),
        ("PYTHONUNBUFFERED=1", "RELAYER_KEY=0x01", "a secret must not be a variable"),
        ("COPY common common", "COPY . .", "may carry secrets"),
        ("COPY common common", "ADD common common", "ADD is not wanted here"),
        ("HEALTHCHECK", "STOPSIGNAL", "a HEALTHCHECK must say"),
        ('CMD ["serve"]', "CMD serve", "CMD must be a list"),
    ],
)
def test_rule_finds_its_violation(instead_of: str, put: str, told: str) -> None:
    good = text_of("coordinatord")
    assert instead_of in good
    assert any(told in fault for fault in faults(good.replace(instead_of, put)))


@pytest.mark.parametrize("daemon", DAEMONS)
def test_image_is_made_by_the_commands_of_the_page(daemon: str) -> None:
    page, heading = STEPS[daemon]
    commands = [line for line in chapter(page, heading)[0].splitlines() if not line.startswith("umask")]
    assert len(commands) == 3
    if daemon == "coordinatord":  # its image also deploys markets and opens encrypted keystores
        commands[1] = chapter(page, heading)[1].strip()
    runs = [one.rest for one in stages(text_of(daemon))[0] if one.word == "RUN"]
    assert runs == commands


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_copied_path_exists_and_the_wheel_is_complete(daemon: str) -> None:
    copied = {word for one in stages(text_of(daemon))[0] if one.word == "COPY" for word in one.rest.split()[:-1]}
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    needed = wheel | {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert needed - copied == set()


@pytest.mark.parametrize("daemon", DAEMONS)
def test_python_of_the_image_is_one_that_the_package_is_for(daemon: str) -> None:
    versions = set(re.findall(r"python:3\.(\d+)-", text_of(daemon)))
    assert len(versions) == 1
    assert f"3.{versions.pop()}" in PYTHONS


def test_ports_and_stop_signal_are_those_that_the_daemons_know() -> None:
    defaults = {each.name.upper(): each.default for each in settings_of(Config)}
    exposed = {one.rest for one in stages(text_of("coordinatord"))[-1] if one.word == "EXPOSE"}
    assert exposed == {f"{defaults['PORT']} {defaults['METRICS_PORT']}"}
    (port,) = re.findall(r"^# port = (\d+)$", (ROOT / "config/svcd.toml").read_text(), re.MULTILINE)
    svcd = text_of("svcd")
    assert f"EXPOSE {port}\n" in svcd
    assert f"127.0.0.1:{port}/healthz" in svcd


def test_page_builds_images_and_runs_them_confined() -> None:
    blocks = "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    for daemon in DAEMONS:
        assert f"--file config/containers/{daemon}.Containerfile" in blocks
    commands = re.sub(r"\\\n", " ", blocks).splitlines()
    runs = [shlex.split(command) for command in commands if command.startswith("podman run --detach")]
    assert len(runs) == len(DAEMONS)
    for words in runs:
        assert {"--read-only", "no-new-privileges", "--memory", "--pids-limit", "--cap-drop"} <= set(words)
        assert all(word.startswith("127.0.0.1:") for flag, word in itertools.pairwise(words) if flag == "--publish")
    given = {word.partition(",")[0] for words in runs for word in words if word.endswith(",mode=0400")}
    assert given == {"database_url", "relayer_key", "pin_store_key", "pin_store_secret", "wallet.key", "box.key"}
    assert given - {"wallet.key", "box.key"} <= {name.lower() for name in SECRETS}
