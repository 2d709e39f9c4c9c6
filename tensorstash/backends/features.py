"""What of a framework the adapters need that it does not document, and which versions have it.

A table of names, so that neither asking for them nor listing them imports a framework that is not there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name

from tensorstash.errors import MissingDependencyError


@dataclass(frozen=True, slots=True)
class Feature:
    """Something private of a framework.

    Args:
        path: ``"module:attribute"``.
        purpose: what it is needed for, for people.
        without: what is lost without it; empty if nothing works then.
    """

    path: str
    purpose: str
    without: str = ""

    def is_there(self) -> bool:
        """Whether the framework has it; imports the framework."""
        try:
            resolve_name(self.path)
        except (ImportError, AttributeError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework as its package index knows it.

    Args:
        package: what pip installs.
        oldest: version that has every feature.
        newest: version that all tests of the adapter were run on last.
        features: what it has to have.
    """

    package: str
    oldest: str
    newest: str
    features: tuple[Feature, ...]

    @property
    def versions(self) -> str:
        """The versions that work, for people."""
        return f"{self.package} {self.oldest} and newer (last tested: {self.newest})"


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework(
        "torch",
        "2.8",
        "2.14",
        (
            Feature("torch._C._autograd:_push_saved_tensors_default_hooks", "hooks"),
            Feature("torch._C._autograd:_top_saved_tensors_default_hooks", "hooks inside of hooks"),
            Feature("torch._C._autograd:_get_sequence_nr", "finding what reads a saved tensor"),
            Feature("torch._C._autograd:_get_current_graph_task_keep_graph", "freeing payloads during backward"),
            Feature("torch._C._autograd:SavedTensor", "finding what reads a saved tensor"),
            Feature("torch._C:_current_autograd_node", "finding what reads a saved tensor"),
            Feature("torch._C:_storage_Use_Count", "telling what only the graph holds"),
            Feature("torch._C:_dispatch_keys", "telling which tensors can be rebuilt"),
            Feature("torch._C:_get_dispatch_mode", "telling when a program is traced"),
            Feature("torch._C._dynamo.eval_frame:set_code_exec_strategy", "torch.compile around hooks"),
            Feature("torch._C._dynamo.eval_frame:_FrameExecStrategy", "torch.compile around hooks"),
            Feature("torch._subclasses.functional_tensor:FunctionalTensor", "telling when a program is traced"),
            Feature("torch.multiprocessing.reductions:StorageWeakRef", "one payload per content"),
            Feature(
                "torch._C._autograd:SavedTensor.data",
                "finding what reads a saved tensor",
                "under lossy policies every operation gets exact tensors, and nothing is recomputed",
            ),
        ),
    ),
    "paddle": Framework(
        "paddlepaddle",
        "3.3.1",
        "3.3.1",
        (
            Feature("paddle.autograd:saved_tensors_hooks", "hooks"),
            Feature("paddle:Tensor._inplace_version", "the in-place check"),
            Feature("paddle:Tensor._holder_size", "telling views of parameters"),
            Feature("paddle:Tensor._offset", "exact layouts"),
            Feature("paddle:Tensor._new_shared_tensor", "PyLayer"),
            Feature("paddle.autograd.py_layer:PyLayerBackward", "PyLayer"),
            Feature("paddle.base.core:_get_amp_attrs", "auto_cast"),
            Feature("paddle.jit.dy2static.pir_partial_program:PartialProgramLayer", "jit.to_static"),
        ),
    ),
}
"""By the name of the backend, which is that of the module."""


def installed(name: str) -> str | None:
    """Return the version of a framework that is installed, or None.

    Args:
        name: a key of :data:`FRAMEWORKS`.
    """
    package = FRAMEWORKS[name].package
    for distribution in (package, f"{package}-gpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


@cache
def require(name: str) -> None:
    """Check that the framework that is installed has what its adapter needs; imports it.

    Args:
        name: of a backend; one that is not in :data:`FRAMEWORKS` needs nothing.

    Raises:
        MissingDependencyError: it is there, and lacks something; the message has the versions that work.
    """
    found = installed(name) if name in FRAMEWORKS else None
    if found is None:
        return
    framework = FRAMEWORKS[name]
    if not Feature(name, "").is_there():
        return  # it cannot even be imported, which whoever imports the adapter is told
    lacks = [each for each in framework.features if not each.without and not each.is_there()]
    if lacks:
        needs = "; ".join(f"{each.path.replace(':', '.')}, for {each.purpose}" for each in lacks)
        raise MissingDependencyError(
            f"{framework.package} {found} lacks {needs}. Versions that work: {framework.versions}; pip install "
            f"'{framework.package}>={framework.oldest}'"
        )
