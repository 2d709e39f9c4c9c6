"""One adapter per framework, found by name, by model, or among those that the program has loaded.

A backend has the import name of its framework, so that choosing one imports none that the program does not use.
"""

import sys
from functools import cache
from typing import Any

from tensorstash import registry
from tensorstash.abilities import Backend
from tensorstash.backends.features import require
from tensorstash.errors import BackendError

_IMPORT_NAMES = {"reference": "tensorstash.reference"}


@cache
def backend_named(name: str) -> Backend[Any]:
    """Return the backend registered under ``name``; one instance per process."""
    require(name)
    backend: Backend[Any] = registry.lookup("backends", name)()
    return backend


def backend_of(model: object) -> Backend[Any]:
    """Return the backend of the framework that ``model`` (a module or a tensor) belongs to; raise without one."""
    for name in _loaded():
        backend = backend_named(name)
        if backend.owns(model):
            return backend
    kind = type(model)
    got = f"got a {kind.__module__}.{kind.__qualname__}, expected a module"
    for inside in ("network", "model", "module"):
        if any(backend_named(name).owns(getattr(model, inside, None)) for name in _loaded()):
            raise BackendError(f"{got}; pass the one inside: model.{inside}")
    raise BackendError(f"{got} or tensor of one of: {', '.join(registry.names('backends'))}")


def backend_chosen(framework: str | None) -> Backend[Any]:
    """Return the backend of a framework, by default of the only one that the program has imported."""
    if framework is not None:
        return backend_named(framework)
    loaded = _loaded()
    if len(loaded) == 1:
        return backend_named(loaded[0])
    known = ", ".join(repr(name) for name in registry.names("backends"))
    if not loaded:
        raise BackendError(f"no framework is imported; import one first, or pass framework= one of {known}")
    raise BackendError(f"several frameworks are imported ({', '.join(loaded)}); pass framework= one of them")


def _loaded() -> list[str]:
    return [name for name in registry.names("backends") if _IMPORT_NAMES.get(name, name) in sys.modules]
