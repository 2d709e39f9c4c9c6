"""The protocols of a backend, the adapter of a framework: the required one, and optional abilities."""

from tensorstash.abilities.backend import Backend
from tensorstash.abilities.checkpoints import Region, SupportsCheckpoints
from tensorstash.abilities.devices import Event, Kernel, Kernels, Layouts, Stream, Streams
from tensorstash.abilities.graph import (
    Readers,
    SupportsDemand,
    SupportsGraph,
    SupportsImagining,
    SupportsMemoryUse,
    SupportsSharedMemory,
)
from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers

__all__ = [
    "Backend",
    "Event",
    "Kernel",
    "Kernels",
    "Layouts",
    "Leaf",
    "Producers",
    "Readers",
    "Recipe",
    "Region",
    "Stream",
    "Streams",
    "SupportsCheckpoints",
    "SupportsDemand",
    "SupportsGraph",
    "SupportsImagining",
    "SupportsMemoryUse",
    "SupportsProducers",
    "SupportsSharedMemory",
]
