"""What a backend may offer on top: the abilities of a framework that the engine asks for, each by its protocol."""

from tensorstash.abilities.devices import (
    Event,
    Kernel,
    Stream,
    SupportsComputeThreads,
    SupportsKernels,
    SupportsStreams,
)
from tensorstash.abilities.graph import (
    Readers,
    SupportsCompiledGraphs,
    SupportsDemand,
    SupportsHolders,
    SupportsMemoryUse,
    SupportsOrder,
    SupportsReaders,
    SupportsRecording,
    SupportsSharedMemory,
)
from tensorstash.abilities.recipes import Leaf, Producers, Recipe, SupportsProducers

__all__ = [
    "Event",
    "Kernel",
    "Leaf",
    "Producers",
    "Readers",
    "Recipe",
    "Stream",
    "SupportsCompiledGraphs",
    "SupportsComputeThreads",
    "SupportsDemand",
    "SupportsHolders",
    "SupportsKernels",
    "SupportsMemoryUse",
    "SupportsOrder",
    "SupportsProducers",
    "SupportsReaders",
    "SupportsRecording",
    "SupportsSharedMemory",
    "SupportsStreams",
]
