import pytest

from svcd.backends.json_load import load_from_json
from svcd.backends.load_settings import JsonSettings
from tests.support.fakes.backend_settings import read_probe


@pytest.mark.parametrize(
    ("raw", "load"),
    [
        (b'{"queue": {"busy": 2}}', 0.5),
        (b'{"queue": {"busy": 9}}', 1.0),
        (b'{"queue": {"busy": -1}}', 0.0),
        (b'{"queue": {"busy": "2"}}', None),
        (b'{"queue": {"busy": true}}', None),
        (b'{"queue": {"busy": NaN}}', None),
        (b'{"queue": {"busy": ' + b"9" * 400 + b"}}", None),
        (b'{"queue": {}}', None),
        (b"busy", None),
    ],
)
def test_the_number_at_the_path_over_what_is_full_is_the_load(raw: bytes, load: float | None) -> None:
    settings = read_probe({"kind": "json", "url": "http://h", "path": "queue.busy", "full_at": 4})
    assert isinstance(settings, JsonSettings)
    assert load_from_json(raw, settings) == load
