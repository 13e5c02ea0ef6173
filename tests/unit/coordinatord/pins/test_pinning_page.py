"""The examples of the page on pin stores are valid settings of a coordinator."""

import re
from pathlib import Path

import pytest

from coordinatord.run.config import read_config
from tests.unit.coordinatord.environment import ENVIRONMENT

PAGE = (Path(__file__).parents[4] / "docs" / "operators" / "stores.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```sh\n# example: (\w+)\n(.*?)```", PAGE, re.DOTALL))


def test_every_kind_of_store_has_its_example_and_its_row() -> None:
    assert set(EXAMPLES) == {"filebase", "s3", "kubo"} == set(re.findall(r"^\| `([a-z0-9]+)`", PAGE, re.MULTILINE))


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_example_is_a_configuration_of_that_kind_with_a_gateway(kind: str) -> None:
    environ = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("PIN_")}
    environ |= dict(line.split("=", 1) for line in EXAMPLES[kind].splitlines())
    config = read_config(environ)
    assert config.pin_store == kind
    assert config.gateway_url is not None
    assert set(re.findall(r"^(\w+)=", EXAMPLES[kind], re.MULTILINE)) <= {
        "PIN_STORE",
        "PIN_STORE_ENDPOINT",
        "PIN_STORE_KEY",
        "PIN_STORE_SECRET",
        "PIN_STORE_BUCKET",
        "PIN_STORE_REGION",
        "GATEWAY_URL",
    }
