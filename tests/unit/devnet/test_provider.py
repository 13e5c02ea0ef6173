import pytest

from devnet.catalogue import MODELS
from devnet.provider import polls_for_all_models


def exposition(free: float, *, models: int = len(MODELS)) -> str:
    return "# TYPE svcd_model_free gauge\n" + "".join(
        f'svcd_model_free{{model="{model.name}"}} {free}\n' for model in MODELS[:models]
    )


@pytest.mark.parametrize("free", [8.0, 1.0, 10.0])
def test_provider_is_ready_with_any_granted_capacity(free: float) -> None:
    assert polls_for_all_models(exposition(free))


def test_provider_needs_room_and_a_poll_to_be_ready() -> None:
    assert not polls_for_all_models(exposition(0.0))
    assert not polls_for_all_models(exposition(8.0, models=len(MODELS) - 1))
