import json
from pathlib import Path

from tests.conformance.vectors import OUTPUTS, cases_of
from tests.vectors.vector_file import FOLDER


def test_every_file_of_vectors_is_fed_and_no_case_gives_its_answer_away() -> None:
    assert OUTPUTS.keys() == {path.stem for path in Path(FOLDER).glob("*.json")}
    for file in OUTPUTS:
        for asked in cases_of(FOLDER, file):
            given = json.loads(asked.line)["case"]
            assert "refused" not in given
            assert not asked.follows.keys() & given.keys()
            assert asked.follows or asked.refused or not OUTPUTS[file], f"{file}: nothing follows from {asked.name}"


def test_what_a_large_case_is_made_from_is_given() -> None:
    [large] = [one for one in cases_of(FOLDER, "result") if "plaintext_length" in one.given]
    assert {"dek", "header", "seed_wrap"} <= large.given.keys()
    assert "sealed_sha256" in large.follows
