"""The document of the API, made from the table of routes."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from headrace.node.problems import ProblemJson
from headrace.node.routes.table import Call, Route


async def openapi(call: Call) -> Any:
    return document(read_only=call.node.settings.read_only)


@cache
def document(*, read_only: bool) -> dict[str, Any]:
    """OpenAPI 3.1 of every route."""
    from headrace import __version__
    from headrace.node.routes import PREFIX, table

    routes = table(read_only=read_only)
    types = [t for each in routes for t in (each.answer, each.body) if t is not None]
    queries = [each.query for each in routes]
    schemas, components = msgspec.json.schema_components(
        [*types, *queries, ProblemJson], ref_template="#/components/schemas/{name}"
    )
    by_type = {id(t): schema for t, schema in zip([*types, *queries], schemas, strict=False)}
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        found = _operation(each, by_type, components)
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = found
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace node",
            "version": __version__,
            "description": "Everything that the console shows and does.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(
    route: Route, by_type: dict[int, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    names = [part[1:-1] for part in route.parts if part.startswith("{")]
    content = (
        {"application/json": {"schema": by_type[id(route.answer)]}}
        if route.answer is not None
        else {route.media: {}}
    )
    found: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{'_'.join(route.parts)}".replace("{", "").replace(
            "}", ""
        ),
        "description": f"Role: {route.role}."
        + (f" At the command line: `{route.cli}`." if route.cli else ""),
        "x-role": route.role,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
        + _parameters(by_type[id(route.query)], components),
        "responses": {
            "200": {"description": "Done", "content": content},
            "default": {
                "description": "What went wrong",
                "content": {
                    "application/problem+json": {
                        "schema": {"$ref": "#/components/schemas/ProblemJson"}
                    }
                },
            },
        },
    }
    if route.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[id(route.body)]}},
        }
    return found


def _parameters(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    about = components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    required = set(about.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in about.get("properties", {}).items()
    ]


ROUTES = (
    Route(
        method="GET",
        path="/openapi.json",
        summary="This document",
        handler=openapi,
        answer=dict[str, Any],
    ),
)
