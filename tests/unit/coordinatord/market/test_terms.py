import json
from pathlib import Path
from typing import Any

import pytest

from common.daemon.process import Fatal
from coordinatord.market.terms import ModelTerms, read_terms

ADDRESSES = {name: "0x" + f"{n:02x}" * 20 for n, name in enumerate(("token", "owner", "treasury", "relayer"), 0x11)}
VALUES: dict[str, Any] = {
    **{name: ADDRESSES[name] for name in ("token", "owner", "treasury")},
    **{"chain_id": 8453, "decimals": 6, "fee_bps": 250, "gas_fee": 2000, "max_gas_fee": "10000", "point_price": 400},
    **{"slas": [300, 3600], "relayers": [ADDRESSES["relayer"]], "models": [{"id": 1, "name": "a"}]},
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "market.json"
    path.write_text(json.dumps({k: v for k, v in {**VALUES, **changes}.items() if v is not None}))
    return path


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{ "type": "object" }')
    models = [{"id": 1, "name": "a", "params_schema": {"type": "object"}}, {"id": 2, "name": "b", "owned_by": "me"}]
    as_toml = tmp_path / "market.toml"
    plain = "\n".join(f"{key} = {json.dumps(value)}" for key, value in VALUES.items() if key != "models")
    as_toml.write_text(
        f'{plain}\n[[models]]\nid = 1\nname = "a"\nparams_schema_file = "schema.json"\n'
        '[[models]]\nid = 2\nname = "b"\nowned_by = "me"\n'
    )
    terms = read_terms(as_toml, {})
    assert terms == read_terms(written(tmp_path, models=models), {})
    assert terms.models == (ModelTerms(1, "a", "", '{"type":"object"}'), ModelTerms(2, "b", "me"))
    assert (terms.max_gas_fee, terms.token_gas, terms.token_name) == (10000, 200_000, None)


def test_flags_go_before_the_file_and_do_without_it(tmp_path: Path) -> None:
    flags = {"fee_bps": "7", "slas": [60], "models": [{"id": 3, "name": "c"}], "owner": None}
    terms = read_terms(written(tmp_path), flags)
    assert (terms.fee_bps, terms.slas, terms.models) == (7, (60,), (ModelTerms(3, "c"),))
    assert read_terms(None, {**VALUES, **{k: v for k, v in flags.items() if v is not None}}) == terms


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fee_bps": 2001}, r"fee_bps must be in 0\.\.2000"),
        ({"fee_bps": True}, "fee_bps must be an integer"),
        ({"gas_fee": 10001}, "gas_fee must not be above max_gas_fee, 10000"),
        ({"max_gas_fee": str(2**128)}, "max_gas_fee does not fit a uint128"),
        ({"point_price": str(2**96)}, "point_price does not fit a uint96"),
        ({"token_gas": 199_999}, r"token_gas must be in 200000\.\.2000000"),
        ({"slas": [0]}, r"slas\[0\] must be in 1\.\.86400"),
        ({"slas": []}, "slas must be a list with at least one entry"),
        ({"slas": [60, 60]}, "slas must be distinct: 60 appears more than once"),
        ({"relayers": ["0x12"]}, r"relayers\[0\] must be 0x-prefixed hex of 20 bytes"),
        ({"treasury": ADDRESSES["token"]}, "treasury must not be the token"),
        ({"owner": None}, "owner is required: set it in the file, or with --owner"),
        ({"owners": "x"}, "owners is not a key of a market file"),
        ({"chain_id": 0}, "chain_id must be in 1"),
        ({"decimals": 37}, r"decimals must be in 0\.\.36"),
        ({"models": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "their ids must be distinct"),
        ({"models": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, "their names must be distinct"),
        ({"models": [{"id": 2**32, "name": "a"}]}, r"models\[0\]\.id must be in 1\.\.4294967295"),
        ({"models": [{"id": 1, "name": "é" * 129}]}, "must be a text of 1 to 256 bytes"),
        ({"models": [{"id": 1}]}, r"models\[0\]\.name is required"),
        ({"models": [{"id": 1, "name": "a", "nam": ""}]}, r"models\[0\]\.nam is not a key of a model"),
        ({"models": [{"id": 1, "name": "a", "params_schema": [1]}]}, "must be a JSON Schema object"),
        ({"models": [{"id": 1, "name": "a", "params_schema": {"x": "y" * 17000}}]}, "at most 16384 bytes"),
        ({"models": [{"id": 1, "name": "a", "params_schema_file": "gone"}]}, "No such file"),
    ],
)
def test_unacceptable_term_is_refused_by_name(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(Fatal, match=said):
        read_terms(written(tmp_path, **changes), {})


def test_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=r"gone\.toml: No such file"):
        read_terms(tmp_path / "gone.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("= 1")
    with pytest.raises(Fatal, match="must be TOML"):
        read_terms(broken, {})
