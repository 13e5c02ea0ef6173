"""Downloads of files that a model server names, in any form."""

import json
from typing import Final

import httpx
import pytest
import trio

from svcd.backends.attempts import TryAgain
from svcd.backends.downloads import FileDownloader
from svcd.base.end_reasons import WorkFailed

SERVER: Final = "http://127.0.0.1:1/jobs"


async def download(output: object) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await FileDownloader(client, SERVER, 1 << 20).embed_files(output)


@pytest.mark.parametrize("host", ["a..b", "xn--", "a" * 64 + ".b", "127.0.0.1:99999"])
def test_address_without_a_valid_host_is_retried(host: str) -> None:
    with pytest.raises(TryAgain):
        trio.run(download, f"http://{host}/x")


def test_nested_lists_are_no_files() -> None:
    with pytest.raises(WorkFailed):
        trio.run(download, json.loads("[" * 900 + "]" * 900))
