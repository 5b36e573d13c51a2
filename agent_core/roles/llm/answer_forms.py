"""The JSON schemas that servers hold answers to, made from the shapes that answers are read as.

Services take different parts of JSON schema. What is made here is what all of them take: objects that have
all of their keys and no others, lists, alternatives, and plain types. Lengths and ranges are checked by
whoever reads the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from agent_core.providers.completion import AnswerSchema

_KEPT = ("type", "enum", "const")


def make_answer_schema(name: str, shape: type[BaseModel]) -> AnswerSchema:
    """Return the schema of an answer of this shape; its keys keep the order of the fields."""
    schema = shape.model_json_schema()
    return AnswerSchema(name=name, text=json.dumps(_narrow(schema, schema.get("$defs", {}))))


def _narrow(schema: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in the part of JSON schema that all services take."""
    if "$ref" in schema:
        return _narrow(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        return {"anyOf": [_narrow(one, named) for one in schema["anyOf"]]}
    found = {key: schema[key] for key in _KEPT if key in schema}
    if "items" in schema:
        found["items"] = _narrow(schema["items"], named)
    if "properties" in schema:
        properties = {key: _narrow(one, named) for key, one in schema["properties"].items()}
        found |= {"properties": properties, "required": list(properties), "additionalProperties": False}
    return found
