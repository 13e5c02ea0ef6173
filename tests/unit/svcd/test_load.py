import time

import pytest

from common.refusal import Refused
from common.settings.kinds import read_value
from svcd.backends.discount import AskRates, Discount
from svcd.backends.json_load import load_from_json
from svcd.backends.load import open_load
from svcd.backends.load_request import MAX_ANSWER_BYTES
from svcd.backends.load_settings import JsonSettings, PrometheusSettings, SlotsSettings, probe_kind
from svcd.backends.prometheus_load import load_from_exposition
from svcd.base import metrics
from tests.support.fakes.backend_settings import read_probe


def idle_for(seconds: float, **settings: float) -> Discount:
    discount = Discount("m", 40, **settings)
    discount.observe(0, 0)
    discount.observe(0, seconds)
    return discount


@pytest.mark.parametrize(("seconds", "percent"), [(0, 0), (150, 10), (600, 40), (10_000, 40)])
def test_it_grows_while_idle_up_to_the_configured_floor(seconds: float, percent: int) -> None:
    assert idle_for(seconds).percent == percent


@pytest.mark.parametrize(("load", "percent"), [(0.2, 30), (0.4, 20), (0.8, 0), (1, 0)])
def test_it_falls_at_once_with_the_load(load: float, percent: int) -> None:
    discount = idle_for(600)
    discount.observe(load, 601)
    assert discount.percent == percent


def test_after_a_busy_moment_it_grows_from_nothing_again() -> None:
    discount = idle_for(600)
    discount.observe(1, 601)
    discount.observe(0, 616)
    assert discount.percent == 1


def test_no_configured_floor_is_no_discount() -> None:
    discount = Discount("m", 0)
    discount.observe(0, 0)
    discount.observe(0, 1e6)
    assert discount.lowest_rates(AskRates(100, 200)) == AskRates(100, 200)


def test_floor_is_rounded_up_to_whole_units() -> None:
    assert idle_for(150).lowest_rates(AskRates(11, 2**127 + 1)) == AskRates(10, (2**127 + 1) * 9 // 10 + 1)


def test_the_metric_is_there_from_the_start_and_follows() -> None:
    discount = Discount("shown", 40)
    shown = metrics.bid_floor_discount.labels("shown")
    assert shown._value.get() == 0
    discount.observe(0, 0)
    discount.observe(0, 300)
    assert shown._value.get() == 20


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


def settings(**entries: object) -> PrometheusSettings:
    read = read_probe({"kind": "prometheus", "url": "http://h/metrics", **entries})
    assert isinstance(read, PrometheusSettings)
    return read


VLLM_OLD = """# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a"} 3.0
vllm:num_requests_waiting{model_name="a"} 1.0
vllm:gpu_cache_usage_perc{model_name="a"} 0.25
"""
VLLM_NEW = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 1.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.1
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.9
"""
RAY = 'ray_vllm_num_requests_running{model_name="a"} 2\n'
SGLANG = (
    'sglang:num_running_reqs{model_name="a"} 2.0\nsglang:num_queue_reqs{model_name="a"} 6\nsglang:token_usage 0.28\n'
)
SGLANG_UNDERSCORES = "sglang_num_running_reqs 4\n"
TGI = "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 5\ntgi_queue_size 0\n"
LLAMA_CPP = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 46\n"


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM_OLD, 0.5),
        (VLLM_NEW, 0.9),
        (RAY, 0.25),
        (SGLANG, 1.0),
        (SGLANG_UNDERSCORES, 0.5),
        (TGI, 0.625),
        (LLAMA_CPP, 1.0),
        ("vllm:num_requests_running 0\n", 0.0),
    ],
    ids=["vllm 0.4", "vllm 1, two engines", "ray", "sglang", "sglang, underscores", "tgi", "llama.cpp", "idle"],
)
def test_every_known_servers_names_are_understood(text: str, load: float) -> None:
    assert load_from_exposition(text, settings(), slots=8) == pytest.approx(load)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "up 1\n",
        "vllm:num_requests_running{ 3",
        "vllm:num_requests_running NaN\n",
        f"tgi_queue_size {'9' * 400}\n",  # larger than any float
        f"tgi_queue_size 1 {'9' * 400}\n",
        f'tgi_queue_size{{model="{"a" * 5000}"}} 1\n',
        'tgi_queue_size{model="a"} 1\n' * 20_000,
        "<html>",
    ],
    ids=[
        *("empty", "another series", "cut off", "no number", "number too large", "timestamp too large"),
        *("label too long", "too many series", "html"),
    ],
)
def test_without_a_known_series_there_is_no_reading(text: str) -> None:
    assert load_from_exposition(text, settings(), slots=8) is None


def test_a_configuration_may_name_series_labels_and_what_is_full() -> None:
    text = 'busy{model="a"} 2\nbusy{model="b"} 20\nvllm:num_requests_running 99\n'
    chosen = settings(running=["busy"], labels={"model": "a"}, full_at=4)
    assert load_from_exposition(text, chosen, slots=8) == 0.5


@pytest.mark.parametrize(
    "text",
    [
        'tgi_queue_size{model="' + '\\"' * MAX_ANSWER_BYTES + '"} 1\n',
        'other{model="' + '\\"' * 50_000 + '"} 1\ntgi_queue_size 1\n',
        ('tgi_queue_size{model="' + '\\"' * 2000 + '"} 1\n') * 64,
        "tgi_queue_size " * (MAX_ANSWER_BYTES // 15),
        "\n" * MAX_ANSWER_BYTES,
        " " * MAX_ANSWER_BYTES,
    ],
    ids=["one label", "label of another series", "long labels", "one line", "empty lines", "spaces"],
)
def test_hostile_text_is_read_in_bounded_time(text: str) -> None:
    start = time.process_time()
    load_from_exposition(text, settings(), slots=8)
    assert time.process_time() - start < 2


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


async def test_without_a_probe_the_load_is_that_of_the_own_slots() -> None:
    async with open_load(read_probe({}), model="slotted", slots=4, in_flight=lambda: 3) as load:
        assert await load.read() == 0.75
    assert metrics.backend_load.labels("slotted")._value.get() == 0.75
    assert metrics.load_probe_failures.labels("slotted")._value.get() == 0
