import pytest

from svcd.backends.openai_usage import read_work_output
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import WorkOutput
from tests.support.fakes.provider_work import work_on

CHAT = {"model": "/models/secret-path", "choices": [{"message": {"content": "x" * 40}}]}


@pytest.mark.parametrize(
    ("usage", "counted", "charged"),
    [
        ({"completion_tokens": 42}, 7, 42),
        ({"completion_tokens": 900}, 7, 100),
        (None, 7, 7),
        ({}, 900, 100),
        ({}, 0, 14),
    ],
    ids=["the server's count", "never above the order", "pieces of the stream", "pieces above the order", "by length"],
)
def test_text_is_charged_by_the_best_count_there_is(
    usage: dict[str, object] | None, counted: int, charged: int
) -> None:
    output = read_work_output("chat", work_on(), CHAT | {"usage": usage}, counted)
    assert output.completion_tok == charged
    assert output.usage["completion_tokens"] == (usage or {}).get("completion_tokens", counted or 14)


def test_the_model_keeps_its_name_of_the_market() -> None:
    output = read_work_output("chat", work_on(), CHAT, 1).output
    assert isinstance(output, dict)
    assert output["model"] == "market/model"


def test_embeddings_have_no_output_units() -> None:
    answer: dict[str, object] = {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}}
    assert read_work_output("embeddings", work_on(modality="embeddings"), answer, 0) == WorkOutput(
        answer, 0, {"prompt_tokens": 3}
    )


@pytest.mark.parametrize(("images", "charged"), [(1, 50), (2, 100), (3, 100)])
def test_images_are_charged_as_many_as_came(images: int, charged: int) -> None:
    answer: dict[str, object] = {"data": [{"b64_json": "AAAA"}] * images}
    work = work_on({"prompt": "x", "num_images": 2}, modality="image")
    assert read_work_output("images", work, answer, 0).completion_tok == charged


def test_images_only_by_address_are_the_providers_fault() -> None:
    with pytest.raises(WorkFailed) as failed:
        read_work_output(
            "images", work_on({"prompt": "x"}, modality="image"), {"data": [{"url": "http://inside/1.png"}]}, 0
        )
    assert failed.value.backend_fault
