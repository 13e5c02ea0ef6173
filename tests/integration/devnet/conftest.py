from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from devnet.pins import PinStoreService, running_pin_store
from devnet.ports import pick_free
from tests.integration.conftest import Services


@pytest.fixture(scope="module")
def devnet_store(services: Services) -> Iterator[PinStoreService]:
    ports = pick_free(), pick_free()
    yield from services.run(running_pin_store(*ports, services.folder("devnet_pins"), services.folder("logs")))


def client_of(store: PinStoreService, *, secret: str | None = None) -> Any:
    """Return botocore's S3 client, as any user of the store would have it."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.key,
        aws_secret_access_key=secret or store.secret,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def s3(devnet_store: PinStoreService) -> Iterator[Any]:
    client = client_of(devnet_store)
    yield client
    client.close()
