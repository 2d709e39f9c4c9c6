"""What a backend is: the adapter of a framework, and what it may offer on top.

Kernels, layouts and streams of devices are objects that a backend gives, or None; what a framework tells of its graph
is asked for by its protocol.
"""

from tensorstash.abilities.backend import Backend
from tensorstash.abilities.devices import (
    Event,
    Kernel,
    Kernels,
    Layouts,
    Stream,
    Streams,
)
from tensorstash.abilities.graph import (
    Readers,
    SupportsCompiledGraphs,
    SupportsDemand,
    SupportsHolders,
    SupportsImagining,
    SupportsMemory,
    SupportsMemoryUse,
    SupportsOrder,
    SupportsReaders,
    SupportsRecording,
    SupportsSharedMemory,
    SupportsStorageRelease,
    SupportsWriters,
)
from tensorstash.abilities.ranks import KeyValues, Ranks, SupportsRanks
from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers

__all__ = [
    "Backend",
    "Event",
    "Kernel",
    "Kernels",
    "KeyValues",
    "Layouts",
    "Leaf",
    "Producers",
    "Ranks",
    "Readers",
    "Recipe",
    "Stream",
    "Streams",
    "SupportsCompiledGraphs",
    "SupportsDemand",
    "SupportsHolders",
    "SupportsImagining",
    "SupportsMemory",
    "SupportsMemoryUse",
    "SupportsOrder",
    "SupportsProducers",
    "SupportsRanks",
    "SupportsReaders",
    "SupportsRecording",
    "SupportsSharedMemory",
    "SupportsStorageRelease",
    "SupportsWriters",
]
