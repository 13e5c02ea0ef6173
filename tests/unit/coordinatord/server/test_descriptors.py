import resource

import structlog.testing

from coordinatord.run.app import connection_limits
from coordinatord.run.config import read_config
from coordinatord.run.descriptors import connections_within, raise_descriptor_limit
from tests.unit.coordinatord.environment import ENVIRONMENT


def test_soft_descriptor_limit_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_few_descriptors_limit_connections_with_a_warning() -> None:
    config = read_config(ENVIRONMENT)
    with structlog.testing.capture_logs() as logged:
        limits = connection_limits(config, 1024)
    assert 512 < limits.most < 1024
    (warning,) = logged
    assert warning == {
        "event": "connections limited",
        "log_level": "warning",
        "limit": 1024,
        "connections": limits.most,
    }


def test_enough_descriptors_leave_connections_max_alone() -> None:
    config = read_config(ENVIRONMENT)
    with structlog.testing.capture_logs() as logged:
        assert connection_limits(config, 65_536).most == config.connections_max
    assert logged == []


def test_webhooks_replicas_and_pools_take_descriptors_from_callers() -> None:
    plain = connections_within(4096, read_config(ENVIRONMENT))
    for setting in (
        {"WEBHOOKS_KEY": "5e" * 32},
        {"DATABASE_REPLICA_URLS": "postgresql://replica.invalid/none"},
        {"DATABASE_POOL_MAX": "64"},
    ):
        assert connections_within(4096, read_config(ENVIRONMENT | setting)) < plain


def test_least_number_of_connections_is_served_whatever_the_limit() -> None:
    assert connections_within(64, read_config(ENVIRONMENT)) == 16
