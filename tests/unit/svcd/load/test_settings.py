import pytest

from common.refusal import Refused
from common.settings.kinds import read_value
from svcd.backends.load_settings import SlotsSettings, probe_kind


def test_no_probe_at_all_is_that_of_the_slots() -> None:
    assert read_value(probe_kind, {}, "load") == SlotsSettings()


@pytest.mark.parametrize(
    ("table", "param"),
    [
        ({"kind": "magic"}, "kind"),
        ({"kind": "slots", "url": "http://h"}, "url"),
        ({"kind": "prometheus"}, "url"),
        ({"kind": "prometheus", "url": "http://h", "full_at": 0}, "full_at"),
        ({"kind": "json", "url": "http://h"}, "path"),
        ({"kind": "json", "url": "http://h", "path": "a[*]"}, "path"),
    ],
)
def test_a_mistake_is_refused_and_names_its_key(table: dict[str, object], param: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_value(probe_kind, table, "load")
    assert refusal.value.param == f"load.{param}"
