"""Render the OpenAPI document as one page of Markdown: each route with its fields, a curl call, answers and errors."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

Schema = dict[str, Any]
_LONGEST_VALUE: Final = 100  # characters of an example's text, beyond which it is cut

_PAGE_LINK: Final = re.compile(r"\[([\w ]+)(?:\.md)?\]\((?:#times|\w+\.md)\)")  # to a page that the reference replaces
_REFUSED_WITH: Final = "| refused with | code | because | then |\n|---|---|---|---|\n"


def http_reference(document: Schema) -> str:
    by_tag: dict[str, list[tuple[str, str, Schema]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]].append((method.upper(), path, operation))
    everywhere = _refused_everywhere(document)
    parts = [
        f"## Conventions\n\n{document['info']['description']}\n",
        "\nHeaders, pages and retries are in the [HTTP rules](http-rules.md).\n",
        f"\nAny request may be refused with\n\n{_REFUSED_WITH}{''.join(_row(*row) for row in sorted(everywhere))}",
    ]
    for tag in document["tags"]:
        parts.append(f"\n## {tag['name']}\n\n{tag['description']}\n")
        parts += [
            _route(document, method, path, operation, everywhere) for method, path, operation in by_tag[tag["name"]]
        ]
    parts.append(_errors(document))
    return _PAGE_LINK.sub(r"\1", "".join(parts))


def _title(method: str, path: str) -> str:
    return f"{method} {path}"


def _route(document: Schema, method: str, path: str, operation: Schema, everywhere: set[tuple[str, ...]]) -> str:
    who = {"[]": "public", '[{"session": []}]': "session"}.get(
        json.dumps(operation["security"]), "public; session with `free`"
    )
    parts = [f"\n### {_title(method, path)}\n\n{operation['description']}\n\n`{operation['operationId']}`, {who}.\n"]
    if operation["parameters"]:
        parts.append("\n| parameter | in | type | says |\n|---|---|---|---|\n")
        for one in operation["parameters"]:
            name = f"`{one['name']}`" + ("" if one["required"] else ", optional")
            parts.append(_row(name, one["in"], _kind(document, one["schema"]), one["description"]))
    body = operation.get("requestBody")
    if body is not None:
        parts.append(_request(document, body))
    parts += ["\n```sh\n", *_calls(method, path, operation), "```\n"]
    described: dict[str, str] = {}
    for status, response in operation["responses"].items():
        if status < "400" or _shapes(response):
            parts.append(_answer(document, status, response, described))
    refused = [row for row in _refusals(operation) if row not in everywhere]
    if not refused:
        return "".join(parts)
    return "".join([*parts, f"\n{_REFUSED_WITH}", *(_row(*row) for row in refused)])


def _refusals(operation: Schema) -> list[tuple[str, ...]]:
    return [
        (status, *_split(line))
        for status, response in operation["responses"].items()
        for line in response["description"].splitlines()
        if line.startswith("- ")
    ]


def _refused_everywhere(document: Schema) -> set[tuple[str, ...]]:
    """Return the refusals that all routes share."""
    all_of_them = [one for methods in document["paths"].values() for one in methods.values()]
    return set.intersection(*(set(_refusals(one)) for one in all_of_them))


def _split(line: str) -> tuple[str, str, str]:
    code, _, rest = line.removeprefix("- ").partition(": ")
    cause, _, remedy = rest.partition(". Then: ")
    return code, cause, remedy.removesuffix(".")


def _request(document: Schema, body: Schema) -> str:
    [(media, content)] = body["content"].items()
    parts = [f"\nBody: `{media}`. {body['description']}\n"]
    variants = content["schema"].get("anyOf", [content["schema"]])
    for variant in variants:
        parts += [f"\n{variant['title']}:\n"] if len(variants) > 1 else []
        parts.append(_members(document, variant))
    return "".join(parts)


def _members(document: Schema, schema: Schema) -> str:
    rows = [_row(*row) for row in _flat(document, schema, "", set())]
    return "".join(["\n| member | type | says |\n|---|---|---|\n", *rows]) if rows else ""


def _flat(document: Schema, schema: Schema, at: str, seen: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the members of a body and of its nested objects with their paths."""
    schema = _resolved(document, schema)
    for name, member in schema.get("properties", {}).items():
        optional = "" if name in schema.get("required", []) else ", optional"
        path = f"{at}{name}"
        if path in seen:
            continue
        seen.add(path)
        about, *values = member.get("description", "").split("\n- ")
        said = " ".join([about.strip(), "; ".join(values)]).strip()
        yield f"`{path}`{optional}", _kind(document, member), said
        kinds = list(_inside(document, member))
        if len(kinds) > 1 and len({mark for _, mark in kinds}) == 1:
            yield from _of_kinds(document, [inner for inner, _ in kinds], f"{path}{kinds[0][1]}.", seen)
            continue
        for inner, mark in kinds:
            yield from _flat(document, inner, f"{path}{mark}.", seen)


def _of_kinds(document: Schema, kinds: list[Schema], at: str, seen: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the members of an object of several kinds: first the common members, then those of one kind."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for kind in kinds:
        for name, type_, says in _flat(document, kind, at, set(seen)):
            found.setdefault(name, []).append((_kind_name(kind), type_, says))
    for name, variants in found.items():
        seen.add(name.partition("`, ")[0].strip("`"))
        types = " or ".join(dict.fromkeys(type_ for _, type_, _ in variants))
        says = "; or ".join(dict.fromkeys(says for _, _, says in variants))
        only = "" if len(variants) == len(kinds) else f"of {' and '.join(kind for kind, _, _ in variants)} alone: "
        yield name, types, f"{only}{says}"


def _kind_name(kind: Schema) -> str:
    """Return the value that identifies the kind, or its title."""
    values = [value for member in kind["properties"].values() for value in member.get("enum", [])[:1]]
    return f"`{values[0]}`" if values else str(kind["title"])


def _inside(document: Schema, member: Schema) -> Iterator[tuple[Schema, str]]:
    """Yield each object in a member, and the suffix of its path."""
    for variant in member.get("anyOf", [member]):
        whole = _resolved(document, variant)
        if whole.get("type") == "array":
            for inner, _ in _inside(document, whole["items"]):
                yield inner, "[]"
        elif "properties" in whole:
            yield whole, ""
        elif "anyOf" in whole and whole is not member:
            yield from _inside(document, whole)


def _resolved(document: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _kind(document: Schema, schema: Schema) -> str:
    """Name the type in a word or two."""
    schema = _resolved(document, schema)
    if "enum" in schema and schema.get("type") != "integer":
        return ", ".join(
            f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`" for value in schema["enum"]
        )
    if "anyOf" in schema:
        kinds = list(dict.fromkeys(_kind(document, each) for each in schema["anyOf"]))
        return "number or decimal string" if set(kinds) == {"number", "decimal string"} else " or ".join(kinds)
    match schema.get("type"):
        case "integer" if schema.get("maximum", 0) >= 2**64 - 1:  # of a query: no JSON number holds it
            return f"digits, up to 2^{schema['maximum'].bit_length()} − 1"
        case "integer" | "number":
            return "number"
        case "null":
            return "null"
        case "array":
            return f"array of {_kind(document, schema['items'])}"
        case "string":
            return _text_kind(schema)
        case "object" | "boolean" as plain:
            return str(plain)
        case _:
            return "any JSON"


def _text_kind(schema: Schema) -> str:
    pattern = schema.get("pattern", "")
    found = re.fullmatch(r"\^(0x)?\[0-9a-f(?:A-F)?\]\{(\d+)\}\$", pattern)
    if found is not None and int(found[2]) % 2 == 0:
        return f"{int(found[2]) // 2} bytes, hex {'with' if found[1] else 'without'} 0x"
    if pattern.startswith("^0x("):
        return "bytes, hex with 0x"
    if "[1-9][0-9]*" in pattern:
        return "decimal string"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    return "bytes" if schema.get("format") == "binary" else "string"


def _calls(method: str, path: str, operation: Schema) -> Iterator[str]:
    """Yield a curl call for each example. Long values are cut."""
    shown = {one["name"]: one["example"] for one in operation["parameters"] if "example" in one}
    for name in re.findall(r"\{(\w+)\}", path):
        path = path.replace(f"{{{name}}}", quote(str(shown.pop(name)), safe="/"))
    query = "&".join(f"{name}={quote(str(value))}" for name, value in shown.items())
    url = f'"$COORDINATOR{path}{"?" + query if query else ""}"'
    verb = {"GET": ""}.get(method, f"-X {method} ")
    signed_in = (
        ' -H "authorization: Bearer $TOKEN"'
        if {"session": []} in operation["security"] and {} not in operation["security"]
        else ""
    )
    content = operation.get("requestBody", {}).get("content", {})
    if "multipart/form-data" in content:
        yield f'curl {verb}{url}{signed_in} -F purpose=batch -F "file=@lines.jsonl"\n'
    elif "application/json" in content:
        for name, example in content["application/json"]["examples"].items():
            if name != "example":
                yield f"# {name}\n"
            body = json.dumps(_cut(example["value"]), ensure_ascii=False)
            yield f"curl {verb}{url}{signed_in} \\\n  -H 'content-type: application/json' -d '{body}'\n"
    else:
        yield f"curl {verb}{url}{signed_in}\n"


def _shapes(response: Schema) -> list[str]:
    examples = response.get("content", {}).get("application/json", {}).get("examples", {})
    return [name for name in examples if name != "Error"]


def _answer(document: Schema, status: str, response: Schema, described: dict[str, str]) -> str:
    """Render an answer. `described` maps each shape shown before to its status."""
    about = " ".join(line for line in response["description"].splitlines() if not line.startswith("- "))
    parts = [f"\n**{status}** {about}\n"]
    content = response.get("content", {}).get("application/json")
    if content is None:
        return "".join([*parts, *_lines(document, response)])
    shapes = {
        variant.get("$ref", "").rpartition("/")[2]: variant
        for variant in content["schema"].get("anyOf", [content["schema"]])
    }
    for name in _shapes(response):
        if name in described:
            return f"{parts[0]}\nThe body is that of {described[name]}.\n"
        described[name] = status
        body = json.dumps(_cut(content["examples"][name]["value"]), indent=1, ensure_ascii=False)
        title = "" if len(_shapes(response)) == 1 else f"\n`{name}`:\n"
        parts.append(f"{title}\n```json\n{body}\n```\n")
        if name in shapes:
            parts.append(_members(document, shapes[name]))
    return "".join(parts)


def _lines(document: Schema, response: Schema) -> Iterator[str]:
    """Render each kind of line of a JSONL body."""
    body = next(iter(response.get("content", {}).values()), {})
    each = body.get("schema", {}).get("contentSchema")
    schemas = [] if each is None else each.get("anyOf", [each])
    for schema, example in zip(schemas, body.get("x-svc-lines", []), strict=True):
        line = _resolved(document, schema)
        yield f"\n{line['title']}: {line['description']}\n\n```json\n{json.dumps(_cut(example))}\n```\n"
        yield _members(document, line)


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_cut(each) for each in value]
    return f"{value[:_LONGEST_VALUE]}…" if isinstance(value, str) and len(value) > 2 * _LONGEST_VALUE else value


def _errors(document: Schema) -> str:
    parts = [
        '\n## Errors\n\nAn error without a code is identified by its type. "Retryable" is the value of the header'
        " `x-svc-retryable`.\n",
        "\n| code | type | status | retryable | because | then |\n|---|---|---|---|---|---|\n",
    ]
    for error in document["x-svc-errors"]:
        code = f"`{error['code']}`" if error["code"] and " " not in error["code"] else error["code"] or "–"
        types = ", ".join(f"`{kind}`" for kind in error["types"])
        statuses = ", ".join(map(str, error["statuses"]))
        parts.append(
            _row(code, types, statuses, "yes" if error["retryable"] else "no", error["cause"], error["remedy"])
        )
    parts.append(
        "\n## Contract errors\n\nThe contract rejected the transaction. These are the `code` of a 409, the `reason` of"
        f" an op, and the `error.code` of a batch line. None may be repeated unchanged.\n\n{_contract_errors(document)}"
    )
    parts.append(
        "\n## Errors of batch lines\n\nThe `error.code` of a line that did not settle is one of these, a code of"
        " POST /v1/jobs or a contract error.\n\n| code | because | then |\n|---|---|---|\n"
    )
    parts += [_row(f"`{each['code']}`", each["cause"], each["remedy"]) for each in document["x-svc-line-errors"]]
    return "".join(parts)


def _contract_errors(document: Schema) -> str:
    parts = ["| error | returned by | because | then |\n|---|---|---|---|\n"]
    for each in document["x-svc-contract-errors"]:
        names = ", ".join(f"`{name}`" for name in each["names"])
        parts.append(_row(names, each["said_of"], each["cause"], each["remedy"]))
    return "".join(parts)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
