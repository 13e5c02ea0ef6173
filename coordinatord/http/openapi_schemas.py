"""Build the schemas of /openapi.json: response shapes, error envelopes per route, and examples."""

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any, Final

import msgspec

from common.api import errors
from common.api.fields import Schema
from common.api.member_texts import MEMBER_TEXTS, NO_EXAMPLE
from common.api.shapes import DESCRIBED_HERE, OMITTABLE
from coordinatord.http.routing import Reply

_REF_TEMPLATE: Final = "#/components/schemas/{name}"


class Components:
    """Schemas of shapes and errors, by their names in the document."""

    def __init__(self, shapes: Sequence[Any]) -> None:
        self._by_shape, self.schemas = _build_schemas(shapes)
        self._error_members = self.schemas.pop("ErrorBody")["properties"]
        del self.schemas["Error"]

    def schema_of(self, shape: Any) -> Schema:
        return self._by_shape[shape]

    def build_example(self, shape: Any, overrides: Any) -> Any:
        composed = _compose_example(self._by_shape[shape], "", self.schemas)
        return composed if overrides is NO_EXAMPLE else _merge_example(composed, overrides)

    def add_error_schema(self, operation: str, status: int, replies: Sequence[Reply]) -> Schema:
        """Add the schema of an error envelope with the types and codes of these replies. Return a reference to the
        schema."""
        known = [errors.declared_error(reply.status, reply.code) for reply in replies]
        codes = sorted({error.code for error in known if error.code is not None})
        name = (
            _error_component_name(replies[0])
            if len(replies) == 1
            else f"{operation[0].upper()}{operation[1:]}{status}Error"
        )
        code: Schema = {"description": self._error_members["code"]["description"]}
        if any(reply.code == errors.RECEIPT_TIMEOUT for reply in replies):
            code |= {"type": "string", "pattern": "^0x[0-9a-f]{64}$", "description": "hash of the transaction"}
        elif all(error.code is not None for error in known):
            code |= {"type": "string", "enum": codes}
        elif codes:
            code |= {"type": ["string", "null"], "enum": [*codes, None]}
        else:
            code |= {"type": "null"}
        types = sorted({kind for error in known for kind in error.types})
        members = {
            **{name: {k: v for k, v in one.items() if k != "examples"} for name, one in self._error_members.items()},
            "type": {"type": "string", "enum": types, "description": self._error_members["type"]["description"]},
            "code": code,
        }
        envelope = {
            "title": f"{name}Body",
            "description": "the error",
            "type": "object",
            "properties": members,
            "required": list(members),
        }
        self.schemas[name] = {
            "title": name,
            "description": f"Error {status}.",
            "type": "object",
            "properties": {"error": envelope},
            "required": ["error"],
        }
        return {"$ref": _REF_TEMPLATE.format(name=name)}


def _error_component_name(reply: Reply) -> str:
    words = reply.code or re.sub(r"\W+", "_", _UNCODED_ERROR_NAMES[reply.status])
    return "".join(word[0].upper() + word[1:] for word in words.split("_")) + "Error"


_UNCODED_ERROR_NAMES: Final = {
    400: "malformed",
    404: "not_found",
    408: "body_too_slow",
    409: "refused_by_chain",
    416: "range_not_satisfiable",
    431: "head_too_large",
    500: "internal",
}


def _build_schemas(shapes: Sequence[Any]) -> tuple[dict[Any, Schema], Schema]:
    """Return the schemas of the shapes, and the schemas of the components that the shapes refer to.

    Component names have no type parameters, because all shapes use the coordinator's number type. All members except
    `Omittable` ones are required.
    """
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_REF_TEMPLATE)
    plain = {name: _component_name(component["title"]) for name, component in components.items()}
    references = {_REF_TEMPLATE.format(name=name): _REF_TEMPLATE.format(name=named) for name, named in plain.items()}

    def to_document_schema(schema: Any) -> Any:
        if isinstance(schema, str):
            return references.get(schema, schema)
        if isinstance(schema, list):
            return [to_document_schema(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        sent = {name: to_document_schema(each) for name, each in schema.items() if name != DESCRIBED_HERE}
        if sent.pop(OMITTABLE, False):
            (present,) = (variant for variant in sent.pop("anyOf") if variant != {"type": "null"})
            sent = {**present, **sent}
        # Code generators understand `const` better than a single-value enum.
        if sent.get("enum") in ([True], [False]):
            sent |= {"type": "boolean", "const": sent.pop("enum")[0]}
        return sent

    def to_component(schema: Schema) -> Schema:
        required = [name for name, member in schema["properties"].items() if OMITTABLE not in member]
        sent: Schema = to_document_schema(schema)
        for name, member in sent["properties"].items():
            member.pop("default", None)
            if name in MEMBER_TEXTS and DESCRIBED_HERE not in schema["properties"][name]:
                member["description"] = MEMBER_TEXTS[name].about
        # Remove the indentation of the docstring, which Python before 3.13 does not remove.
        if "description" in sent:
            sent["description"] = cleandoc(sent["description"])
        return {**sent, "title": _component_name(sent["title"]), "required": required}

    named = {plain[name]: to_component(schema) for name, schema in components.items()}
    if len(named) != len(components):
        raise AssertionError("two shapes of the API have the same component name")
    return dict(zip(shapes, map(to_document_schema, schemas), strict=True)), named


def component_name_of(shape: Any) -> str:
    return _component_name(getattr(shape, "__origin__", shape).__name__)


def _component_name(name: str) -> str:
    """Return the component name of a class, without type parameters and without the suffix "Shape"."""
    return name.partition("[")[0].removesuffix("Shape")


def _compose_example(schema: Schema, name: str, components: Mapping[str, Schema]) -> Any:
    if "examples" in schema:
        return schema["examples"][0]
    if name in MEMBER_TEXTS and MEMBER_TEXTS[name].example is not NO_EXAMPLE:
        value = MEMBER_TEXTS[name].example
        return int(value) if schema.get("type") == "integer" else value
    if "$ref" in schema:
        return _compose_example(components[schema["$ref"].rpartition("/")[2]], "", components)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _compose_example(schema["anyOf"][0], name, components)
    if schema.get("type") == "array":
        return [_compose_example(schema["items"], "", components)]
    members = {each: _compose_example(one, each, components) for each, one in schema.get("properties", {}).items()}
    return {each: value for each, value in members.items() if value is not NO_EXAMPLE} if members else NO_EXAMPLE


def _merge_example(composed: Any, overrides: Any) -> Any:
    if isinstance(composed, dict) and isinstance(overrides, dict):
        kept = {name: value for name, value in composed.items() if overrides.get(name, value) is not NO_EXAMPLE}
        return {
            **kept,
            **{name: _merge_example(kept.get(name), value) for name, value in overrides.items() if name in kept},
        }
    if isinstance(composed, list) and isinstance(overrides, list):
        return overrides if len(composed) != len(overrides) else list(map(_merge_example, composed, overrides))
    return overrides
