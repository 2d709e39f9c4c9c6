"""What a backend is: the adapter of a framework, and what it may offer on top.

Kernels, layouts and streams of devices are objects that a backend gives, or None; what a framework tells of its graph
is asked for by its protocol.
"""

from tensorstash.abilities.backend import Backend
from tensorstash.abilities.checkpoints import Region, SupportsCheckpoints
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
    SupportsMemoryUse,
    SupportsReaders,
    SupportsRecording,
    SupportsSharedMemory,
    SupportsStorageRelease,
    SupportsWriters,
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
    "SupportsCompiledGraphs",
    "SupportsDemand",
    "SupportsHolders",
    "SupportsImagining",
    "SupportsMemoryUse",
    "SupportsProducers",
    "SupportsReaders",
    "SupportsRecording",
    "SupportsSharedMemory",
    "SupportsStorageRelease",
    "SupportsWriters",
]
