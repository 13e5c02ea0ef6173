import socket
from collections.abc import Iterator
from typing import Final

import pytest

from devnet.errors import DevnetError
from devnet.ports import ANY_ADDRESS, LOOPBACK, WantedPort, is_port_free, pick_free, reserve_ports

CHAIN: Final = "--rpc-port"
STORE: Final = "--pin-store-port"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as other:
        yield other.getsockname()[1]


def test_usual_port_is_had_while_it_is_free() -> None:
    usual = pick_free()
    with reserve_ports([WantedPort("chain", CHAIN, usual)]) as numbers:
        assert numbers == {CHAIN: usual}


def test_taken_usual_port_is_replaced(taken: int) -> None:
    with reserve_ports([WantedPort("chain", CHAIN, taken)]) as numbers:
        assert numbers[CHAIN] != taken
        assert is_port_free(numbers[CHAIN])


def test_port_of_a_devnet_that_does_not_listen_yet_is_left_to_it() -> None:
    usual = pick_free()
    wanted = [WantedPort("chain", CHAIN, usual)]
    with reserve_ports(wanted) as first, reserve_ports(wanted) as second:
        assert first[CHAIN] == usual
        assert second[CHAIN] != usual
    with reserve_ports(wanted) as third:
        assert third[CHAIN] == usual


def test_taken_chosen_port_names_service_and_flag(taken: int) -> None:
    with (
        pytest.raises(DevnetError, match=rf"port {taken} for the chain is in use.*{CHAIN}"),
        reserve_ports([WantedPort("chain", CHAIN, 1, taken)]),
    ):
        pass


def test_port_chosen_for_two_services_is_refused() -> None:
    number = pick_free()
    with (
        pytest.raises(DevnetError, match=rf"port {number} is chosen for both the chain and the pin store"),
        reserve_ports([WantedPort("chain", CHAIN, 1, number), WantedPort("pin store", STORE, 2, number)]),
    ):
        pass


def test_usual_port_gives_way_to_a_chosen_one() -> None:
    number = pick_free()
    with reserve_ports([WantedPort("chain", CHAIN, number), WantedPort("pin store", STORE, 2, number)]) as numbers:
        assert numbers[STORE] == number
        assert numbers[CHAIN] != number


def test_port_taken_on_any_address_is_taken_on_all(taken: int) -> None:
    with reserve_ports([WantedPort("coordinator", CHAIN, taken, host=ANY_ADDRESS)]) as numbers:
        assert numbers[CHAIN] != taken


def test_picked_port_is_not_picked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pick_free()
    other = next(number for number in range(first + 1, first + 1000) if is_port_free(number))
    drawn = iter([first, first, other])
    monkeypatch.setattr("devnet.ports.secrets.choice", lambda _: next(drawn))
    assert pick_free() == other
