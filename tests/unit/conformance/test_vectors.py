import json
from pathlib import Path

from tests.conformance.vectors import OUTPUTS, cases_of
from tests.vectors.vector_file import FOLDER


def test_every_vector_file_is_fed_without_its_answers() -> None:
    assert OUTPUTS.keys() == {path.stem for path in Path(FOLDER).glob("*.json")}
    for file in OUTPUTS:
        for asked in cases_of(FOLDER, file):
            given = json.loads(asked.line)["case"]
            assert "refused" not in given
            assert not asked.follows.keys() & given.keys()
            assert asked.follows or asked.refused or not OUTPUTS[file], f"{file}: nothing follows from {asked.name}"
