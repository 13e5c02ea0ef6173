import time

import pytest

from svcd.backends.load_request import MAX_ANSWER_BYTES
from svcd.backends.load_settings import PrometheusSettings
from svcd.backends.prometheus_load import load_from_exposition
from tests.support.fakes.backend_settings import read_probe


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
