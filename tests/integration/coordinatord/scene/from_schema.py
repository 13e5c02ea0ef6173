"""Generate requests from an OpenAPI document, mostly valid, and sometimes with a wrong value."""

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**60, max_value=2**300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["", "0x", "-1", "01", "1e3", "١٢", "0x" + "g" * 64, "AB==", "\u0000", "bafy"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values that the schema allows."""
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**53 - 1))
        case "array":
            return st.lists(values(schema["items"]), max_size=min(3, schema.get("maxItems", 3)))
        case "object":
            return _objects(schema)
        case "string" if "pattern" in schema:
            text = st.from_regex(schema["pattern"], fullmatch=True)
            return text.filter(lambda t: len(t) <= schema.get("maxLength", 10**9))
        case _:
            return st.text(max_size=min(30, schema.get("maxLength", 30)))


def _objects(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return st.fixed_dictionaries(
        {name: strayed(properties[name]) for name in required},
        optional={name: strayed(one) for name, one in properties.items() if name not in required},
    )


def strayed(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values that match the schema, and in one of ten cases values that do not."""
    return st.integers(0, 9).flatmap(lambda n: values(schema) if n else _JUNK)


def operations(document: Schema) -> st.SearchStrategy[tuple[str, str, Schema]]:
    """Yield (path, method, operation)."""
    return st.sampled_from(
        [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
    )
