"""Every error that leaves the SDK is an SvcError, for any argument of a public method."""

import inspect
import typing
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from svc import files, jobs, market, webhooks
from svc.batches import batches
from svc.client import Client
from svc.core.retries import RetryPolicy
from svc.errors import FileFailed, OrderRefused, SvcError
from svc.sync_client import SyncClient
from tests.unit.svc.fake_coordinator import Answer, FakeCoordinator

PARTS: Final = {
    "": Client,
    "models": market.Models,
    "market": market.Market,
    "jobs": jobs.Jobs,
    "files": files.Files,
    "batches": batches.Batches,
    "webhooks": webhooks.Webhooks,
}
MISSING: Final = Path("/nonexistent/folder/file")
ODD: Final[dict[object, tuple[object, ...]]] = {
    str: ("", "x", "10m", "a\nb", "\udc80", "../..", "0x" + "0" * 63),
    int: (-1, 0, 2**300),
    Path: (MISSING,),
    float: (0.0, -1.0),
}
NAMED: Final[dict[str, tuple[object, ...]]] = {
    "input": ("hi", "", {}),
    "lines": (MISSING, [], ["{"], ['{"body": {"model": "demo/text", "input": "hi"}}']),
    "timeout": (0.0,),
}


def odd_values(parameter: inspect.Parameter) -> tuple[object, ...]:
    """Return values of the parameter's type, or of the first type of a union, that no coordinator accepts."""
    if parameter.name in NAMED:
        return NAMED[parameter.name]
    kinds = (parameter.annotation, *typing.get_args(parameter.annotation))
    return next((ODD[kind] for kind in kinds if kind in ODD), ())


def parameters_of(method: Any) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(method, eval_str=True).parameters.values() if each.name != "self"]


def is_tried(name: str, method: object) -> bool:
    """Return true for public methods, except methods that require a record made by another method."""
    public = inspect.isfunction(method) and not name.startswith("_") and name != "aclose"
    return public and all(odd_values(each) for each in parameters_of(method) if each.default is each.empty)


METHODS: Final = [
    (part, name) for part, kind in PARTS.items() for name, each in vars(kind).items() if is_tried(name, each)
]


async def act(client: Client, part: str, name: str, arguments: dict[str, Any]) -> None:
    outcome = getattr(getattr(client, part) if part else client, name)(**arguments)
    if isinstance(outcome, AsyncIterator):
        async for _ in outcome:
            pass
    elif inspect.isawaitable(outcome):
        await outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("part", "name"), METHODS, ids=[f"{part}.{name}".lstrip(".") for part, name in METHODS])
async def test_odd_arguments_raise_only_svc_errors(part: str, name: str) -> None:
    odd = {each.name: odd_values(each) for each in parameters_of(vars(PARTS[part])[name])}
    required = [each.name for each in parameters_of(vars(PARTS[part])[name]) if each.default is each.empty]
    usual = {each: values[0] for each, values in odd.items() if each in {*required, "timeout"}}
    if "input" in odd:
        usual["model"] = "demo/text"
    for changed, value in [("", None), *((each, value) for each, values in odd.items() for value in values)]:
        async with FakeCoordinator().client(retries=RetryPolicy(max_retries=0)) as client:
            with suppress(SvcError):
                await act(client, part, name, usual | ({changed: value} if changed else {}))


async def test_refused_input_is_an_order_refused() -> None:
    async with FakeCoordinator().client() as client:
        with pytest.raises(OrderRefused) as refused:
            await client.batches.prepare(["{}"], window="10m")
    assert refused.value.message


async def test_missing_file_is_an_svc_error_and_an_os_error() -> None:
    coordinator = FakeCoordinator()
    coordinator.tell(
        "GET /auth/nonce", Answer(200, {"nonce": "00" * 16, "expires_at": 9_999_999_999, "chain_id": 31337})
    )
    coordinator.tell("POST /auth/session", Answer(200, {"token": "svc_sess_x", "expires_at": 9_999_999_999}))
    async with coordinator.client() as client:
        with pytest.raises(FileFailed) as failed:
            await client.files.upload(MISSING, "batch")
    assert isinstance(failed.value, OSError)
    assert (failed.value.code, failed.value.filename) == ("file_failed", str(MISSING))


@pytest.mark.parametrize(
    "options",
    [
        {"addresses": MISSING},
        {"gateways": "ftp://x"},
        {"wallet_key": "0x12"},
        {"max_amount": -1},
        {"settlement_margin": -1},
        {"profile": "none"},
        {"rpc_url": "http://["},
    ],
    ids=lambda options: next(iter(options)),
)
def test_malformed_option_is_an_svc_error(options: dict[str, Any]) -> None:
    with pytest.raises(SvcError):
        Client("https://coordinator", environment={}, **options)


def test_no_known_markets_may_be_an_empty_text() -> None:
    SyncClient("https://coordinator", environment={}, known_markets="").close()
