import os
import resource
from pathlib import Path

import pytest

from coordinatord.run.config import read_config
from coordinatord.run.descriptors import max_caller_connections, memory_limit_bytes, raise_descriptor_limit
from coordinatord.run.limits import Limits
from tests.unit.coordinatord.environment import ENVIRONMENT

GIB = 1 << 30


def test_soft_descriptor_limit_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_and_memory_limit_connections() -> None:
    config = read_config(ENVIRONMENT)
    assert 512 < max_caller_connections(1024, 64 * GIB, config) < 1024
    assert max_caller_connections(1 << 20, 2 * GIB, config) == 8192
    assert max_caller_connections(64, 0, config) == 16


def test_descriptors_are_reserved_before_callers() -> None:
    plain = max_caller_connections(4096, 64 * GIB, read_config(ENVIRONMENT))
    for setting in (
        {"WEBHOOKS_KEY": "5e" * 32},
        {"DATABASE_REPLICA_URLS": "postgresql://replica.invalid/none"},
        {"DATABASE_POOL_MAX": "64"},
    ):
        assert max_caller_connections(4096, 64 * GIB, read_config(ENVIRONMENT | setting)) < plain


def test_default_limits_are_those_of_the_default_connections() -> None:
    assert Limits().with_connections(Limits().connections) == Limits()


@pytest.mark.parametrize(("own", "parent", "expected"), [("max", "4096", 4096), ("1024", "4096", 1024)])
def test_memory_is_limited_by_every_enclosing_cgroup(tmp_path: Path, own: str, parent: str, expected: int) -> None:
    group = tmp_path / "system.slice" / "coordinatord.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{own}\n")
    (group.parent / "memory.max").write_text(f"{parent}\n")
    (tmp_path / "own").write_text("0::/system.slice/coordinatord.service\n")
    assert memory_limit_bytes(tmp_path, tmp_path / "own") == expected


def test_memory_without_cgroups_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path, tmp_path / "none") == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_one_caller_has_at_least_the_default_share() -> None:
    small, large = Limits().with_connections(1024), Limits().with_connections(65_536)
    assert (small.connections_per_caller, small.event_listeners_per_caller, small.event_listeners) == (512, 64, 512)
    assert (large.connections_per_caller, large.event_listeners_per_caller) == (4096, 512)
