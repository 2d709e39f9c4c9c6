"""The exceptions of the package, and the warning; docs/errors.md has their tree, and the cures."""

import logging
import os
import sys
import traceback
import warnings
from types import CodeType
from typing import Any, NamedTuple, Self

logger = logging.getLogger("tensorstash")
logger.addHandler(logging.NullHandler())

_LIBRARIES = os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep, "<frozen "
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"


class TensorStashError(Exception):
    """Whatever this package raises on purpose.

    >>> import tensorstash as ts
    >>> ts.parse("compres")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tensorstash.errors.ConfigError: policy: unknown policy 'compres'; did you mean 'compress'? Known: ...
    """

    def again(self) -> Self:
        """Return an equal error without traceback and causes, which it carries as notes instead.

        An error that is kept in order to be raised later must not hold the frames it came from: they hold tensors.
        """
        fresh = type(self)(*self.args)
        notes = getattr(self, "__notes__", None) or ["".join(traceback.format_exception(self)).rstrip()]
        for note in notes:
            fresh.add_note(note)
        return fresh


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is full: programs catch it by its own class."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class TensorStashWarning(UserWarning):
    """Something has no effect, or costs more than it saves; the message has the cure.

    >>> import warnings
    >>> warnings.simplefilter("error", TensorStashWarning)  # as an error, where nobody reads warnings
    """


class ConfigError(TensorStashError, ValueError):
    """A value, key or name that cannot be accepted, found when a policy, codec, store or selector is built."""


class PlanError(ConfigError):
    """Steps of a chain that cannot follow one another."""


class BackendError(TensorStashError, RuntimeError):
    """No framework, an unknown one, or hooks that were entered and left out of order."""


class MissingDependencyError(BackendError, ImportError):
    """The optional library behind a name is not installed; the message names the package."""


class SavedTensorModifiedError(TensorStashError, RuntimeError):
    """A saved tensor was modified in place while it was kept, as autograd itself would have said."""


class StashError(TensorStashError, RuntimeError):
    """A saved tensor could not be stashed or brought back."""

    def at(self, place: str) -> Self:
        """Return the same error with the place of the failure in front, such as ``"stage 2 of 3 (Zstd(level=3))"``."""
        return type(self)(f"{place}: {self}")


class CodecError(StashError):
    """A codec raised, or returned something of the wrong kind or size."""


class StoreError(StashError):
    """A store failed."""


class StoreFullError(StoreError):
    """No room: the budget is used up, or the device is full."""


class SlotGoneError(StoreError):
    """The slot was deleted, or its store is closed."""


class CorruptDataError(StoreError):
    """The bytes that came back are not the bytes that were put."""


def graph_is_captured(device: str) -> BackendError:
    """Return the error for a saved tensor whose device records its work, to replay it later."""
    return BackendError(
        f"a saved tensor on {device} cannot be stashed or brought back while a CUDA graph is captured: a replay would "
        f"copy to and from memory that is somebody else's by then. Capture outside of the stash, or keep "
        f"the tensors that the captured region saves (Route, min_bytes)"
    )


def modified(tensor: str, version: int, expected: int) -> SavedTensorModifiedError:
    """Return the error that autograd would have raised for a saved tensor that is no longer at its version."""
    return SavedTensorModifiedError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{tensor} is at version {version}; expected version {expected} instead. "
        f"Clone it before the operation that modifies it, or, with ts.stash, call drain() before that."
    )


class Line(NamedTuple):
    """A line of the user's program: the arguments by which :func:`warnings.warn_explicit` points at it."""

    filename: str
    lineno: int
    module: str
    registry: dict[Any, Any]


def user_line() -> Line:
    """Return the innermost line that runs now and is the user's own: of no installed library, and not of Python's."""
    frame = sys._getframe(1)
    while _is_of_libraries(frame.f_code) and frame.f_back is not None:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return Line(frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__")), registry)


def _is_of_libraries(code: CodeType) -> bool:
    name = code.co_filename
    is_made = name == "<string>" and code.co_name == "__init__"  # by dataclasses
    return is_made or name.startswith(_LIBRARIES) or any(part in name for part in _INSTALLED)


def say(message: str, line: Line | None = None) -> None:
    """Warn of a mistake with its cure, by default at the user's line that runs now; also the logger ``tensorstash``."""
    logger.warning("%s", message)
    warnings.warn_explicit(TensorStashWarning(message), None, **(line or user_line())._asdict())
