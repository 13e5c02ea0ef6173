"""Lists of models, as servers with OpenAI's routes return them."""

import json

import pytest

from svcd.backends.servers import parse_model_list


@pytest.mark.parametrize("owner", [[], {}, None, 7, "nobody"])
def test_unknown_owner_is_ignored(owner: object) -> None:
    served = parse_model_list(json.dumps({"data": [{"id": "m", "owned_by": owner}]}).encode())
    assert served is not None
    assert (served.names, served.software) == (("m",), None)
