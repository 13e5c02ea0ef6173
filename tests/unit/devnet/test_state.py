import errno
import json
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devnet.catalogue import MODELS
from devnet.client_environment import export_commands
from devnet.errors import DevnetError
from devnet.ports import ANY_ADDRESS, LOOPBACK, WantedPort, is_port_free, pick_free, reserve_ports
from devnet.provider import polls_for_all_models
from devnet.state_dir import claim_state_dir


def test_second_claim_names_the_process_that_holds_the_directory(tmp_path: Path) -> None:
    with (
        claim_state_dir(tmp_path / "state"),
        pytest.raises(DevnetError, match=r"process \d+"),
        claim_state_dir(tmp_path / "state"),
    ):
        pass


def test_directory_of_a_dead_run_is_emptied_and_said_so(tmp_path: Path) -> None:
    with claim_state_dir(tmp_path) as first:
        assert not first.removed_leftovers
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "stale").touch()
    (tmp_path / "devnet.json").touch()
    with claim_state_dir(tmp_path) as second:
        assert second.removed_leftovers
        assert list(second.postgres.iterdir()) == []
        assert not second.manifest.exists()


def test_directory_of_a_dead_run_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claim_state_dir(tmp_path):
        pass
    (tmp_path / "postgres").mkdir()
    remove, came_between = shutil.rmtree, []

    def interrupted(path: Path, **options: bool) -> None:
        if path.name == "postgres" and not came_between:
            came_between.append(path)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with claim_state_dir(tmp_path) as state:
        assert came_between == [state.postgres]
        assert list(state.postgres.iterdir()) == []


def test_full_disk_is_refused_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = shutil.disk_usage(tmp_path)._replace(free=5 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: left)
    with pytest.raises(DevnetError, match=r"the disk of .* has 5 MiB free.*--state-dir"), claim_state_dir(tmp_path):
        pass


def test_only_logs_are_left_after_a_run(tmp_path: Path) -> None:
    with claim_state_dir(tmp_path) as state:
        (state.anvil / "chain").touch()
        state.manifest.touch()
        (state.logs / "anvil.log").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "logs"]
    assert (tmp_path / "logs" / "anvil.log").exists()


def test_directory_that_holds_foreign_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "precious").touch()
    with pytest.raises(DevnetError, match="no devnet created"), claim_state_dir(tmp_path):
        pass
    assert (tmp_path / "postgres" / "precious").exists()


def test_uncreatable_directory_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(DevnetError, match=r"cannot use .*file/state .*--state-dir"),
        claim_state_dir(tmp_path / "file" / "state"),
    ):
        pass


def test_exports_are_the_first_client_and_where_it_buys(tmp_path: Path) -> None:
    accounts = [{"role": role, "private_key": f"0x{role}"} for role in ("admin", "client")]
    described = {
        "base_url": "http://a",
        "gateway": "http://b",
        "rpc_url": "http://c d",
        "accounts": accounts,
        "addresses": {"chainId": 5},
    }
    (tmp_path / "devnet.json").write_text(json.dumps(described))
    words = [shlex.split(line) for line in export_commands(tmp_path).splitlines()]
    assert words == [
        ["export", "DEVNET_CHAIN_ID=5"],
        ["export", "SVC_BASE_URL=http://a"],
        ["export", "SVC_PIN_GATEWAY=http://b"],
        ["export", "SVC_RPC_URL=http://c d"],
        ["export", "SVC_WALLET_KEY=0xclient"],
        ["export", f"SVC_ADDRESSES_FILE={tmp_path}/addresses.json"],
        ["export", f"SVC_KNOWN_MARKETS={tmp_path}/known/markets.json"],
    ]


def test_devnet_that_is_not_up_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DevnetError, match="start one with `make devnet`"):
        export_commands(tmp_path)


def test_exports_for_own_wallet_replace_the_first_clients(tmp_path: Path) -> None:
    account = {"role": "client", "private_key": "0x11"}
    described = {"base_url": "http://a", "gateway": "http://b", "rpc_url": "http://c", "accounts": [account]} | {
        "addresses": {"chainId": 5}
    }
    (tmp_path / "devnet.json").write_text(json.dumps(described))
    lines = export_commands(tmp_path, Path("my wallet.key")).splitlines()
    assert lines[0] == "unset SVC_WALLET_KEY"
    assert f"export SVC_WALLET_KEY_FILE='{Path.cwd()}/my wallet.key'" in lines
    assert not any("0x11" in line for line in lines)


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
