import json
import re
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


def test_large_case_gives_its_parts() -> None:
    [large] = [one for one in cases_of(FOLDER, "result") if "plaintext_length" in one.given]
    assert {"dek", "header", "seed_wrap"} <= large.given.keys()
    assert "sealed_sha256" in large.follows


def test_guide_checks_each_step_with_files_of_vectors() -> None:
    guide = (FOLDER.parents[1] / "docs" / "protocol" / "client.md").read_text("utf-8")
    steps = re.findall(r"^\| \d+ \| .* \| `([\w,]+)` \|$", guide, re.MULTILINE)
    assert len(steps) >= 9
    assert {name for step in steps for name in step.split(",")} <= OUTPUTS.keys()
