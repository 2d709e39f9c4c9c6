"""Fields of pydantic models that hold a policy. Importing this module teaches every policy class the protocol."""

from typing import Any

from tensorstash.config.reading import read_as
from tensorstash.config.writing import to_dict
from tensorstash.policies import Policy


def core_schema(cls: type[Policy], source: object, handler: object, /) -> dict[str, Any]:
    """Tell pydantic how fields of this type are read and written: an object, plain data, or one line of text.

    Args:
        cls: the class in the annotation.
        source: the annotation, which says no more.
        handler: pydantic's, which would know no policy.
    """
    return {
        "type": "function-plain",
        "function": {"type": "no-info", "function": lambda value: read_as(cls, value, cls.__name__)},
        "serialization": {"type": "function-plain", "function": to_dict},
        "json_schema_input_schema": {"type": "any"},
    }


# Policies must not import their readers.
Policy.__get_pydantic_core_schema__ = classmethod(core_schema)  # type: ignore[attr-defined]
