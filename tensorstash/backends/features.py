"""Undocumented features of frameworks that the adapters need, and the versions that have them.

A table of names, so that neither asking for them nor listing them imports a framework that is not there.
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name

from tensorstash.errors import MissingDependencyError, TensorStashWarning


@dataclass(frozen=True, slots=True)
class Feature:
    """Something private of a framework.

    Args:
        path: ``"module:attribute"``.
        purpose: of the feature, for people.
        without: the loss without it; empty if nothing works then.
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
        package: name for pip.
        oldest: version that has every feature.
        newest: version that all tests of the adapter were run on last.
        features: that it has to have.
        below: the first version that is refused; empty if none is.
    """

    package: str
    oldest: str
    newest: str
    features: tuple[Feature, ...]
    below: str = ""

    @property
    def versions(self) -> str:
        """The versions that work, for people."""
        end = f" to below {self.below}" if self.below else " and newer"
        return f"{self.package} {self.oldest}{end} (last tested: {self.newest})"

    @property
    def requirement(self) -> str:
        """The same for pip."""
        return f"{self.package}>={self.oldest}" + (f",<{self.below}" if self.below else "")


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework(
        "torch",
        "2.8",
        "2.14",
        (
            Feature("torch._C._autograd:_push_saved_tensors_default_hooks", "hooks"),
            Feature("torch._C._autograd:_top_saved_tensors_default_hooks", "hooks inside of hooks"),
            Feature("torch._C._autograd:_get_sequence_nr", "finding the readers of a saved tensor"),
            Feature("torch._C._autograd:_get_current_graph_task_keep_graph", "freeing payloads during backward"),
            Feature("torch._C._autograd:SavedTensor", "finding the readers of a saved tensor"),
            Feature("torch._C:_current_autograd_node", "finding the readers of a saved tensor"),
            Feature("torch._C:_storage_Use_Count", "telling tensors that only the graph holds"),
            Feature("torch._C:_dispatch_keys", "telling which tensors can be rebuilt"),
            Feature("torch._C:_get_dispatch_mode", "telling when a program is traced"),
            Feature("torch._C._dynamo.eval_frame:set_code_exec_strategy", "torch.compile around hooks"),
            Feature("torch._C._dynamo.eval_frame:_FrameExecStrategy", "torch.compile around hooks"),
            Feature("torch._subclasses.functional_tensor:FunctionalTensor", "telling when a program is traced"),
            Feature("torch:UntypedStorage._weak_ref", "one payload per content"),
            Feature(
                "torch._C._autograd:SavedTensor.data",
                "finding the readers of a saved tensor",
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
            Feature("paddle.base.core:eager.register_saved_tensors_hooks", "hooks"),
            Feature("paddle.base.core:eager.reset_saved_tensors_hooks", "hooks"),
            Feature("paddle.base.core:eager.run_backward", "freeing payloads during backward"),
            Feature("paddle.base.core:eager.run_partial_grad", "freeing payloads during backward"),
            Feature("paddle.base.core:Tracer._has_grad", "switching gradient recording off in hooks"),
            Feature("paddle.base.framework:_dygraph_tracer", "switching gradient recording off in hooks"),
            Feature("paddle.base.framework:_current_expected_place", "tensors that are saved without memory"),
            Feature("paddle.base.framework:EagerParamBase", "finding parameters"),
            Feature("paddle:Tensor._is_initialized", "telling which tensors can be rebuilt"),
            Feature("paddle:Tensor._inplace_version", "the in-place check"),
            Feature("paddle:Tensor._clear_data", "the in-place check"),
            Feature("paddle:Tensor._holder_size", "telling views of parameters"),
            Feature("paddle:Tensor._is_shared_buffer_with", "one payload per content"),
            Feature("paddle:Tensor._offset", "exact layouts"),
            Feature("paddle:Tensor._copy_to", "copies of devices"),
            Feature("paddle.device:_convert_to_place", "copies of devices"),
            Feature("paddle._C_ops:empty", "exact layouts"),
            Feature("paddle:Tensor._new_shared_tensor", "PyLayer"),
            Feature("paddle:Tensor._set_impl", "PyLayer"),
            Feature("paddle:Tensor._is_shared_underline_tensor_with", "PyLayer"),
            Feature("paddle.autograd.py_layer:PyLayerBackward", "PyLayer"),
            Feature("paddle.base.core:_get_amp_attrs", "auto_cast"),
            Feature("paddle.base.core:AmpLevel.O0", "auto_cast"),
            Feature("paddle.jit.dy2static.pir_partial_program:PartialProgramLayer", "jit.to_static"),
            Feature("paddle.nn:Layer._dygraph_call_func", "wrap"),
            Feature("paddle.base.libpaddle:GradNodeBase.node_ptr", "Recompute"),
            Feature("paddle.base.libpaddle:GradNodeBase.next_functions", "Recompute"),
            Feature("paddle._C_ops:gelu", "Recompute"),
            Feature("paddle._C_ops:layer_norm", "Recompute"),
            Feature("paddle._C_ops:batch_norm", "Recompute"),
            Feature("paddle._C_ops:batch_norm_", "Recompute"),
            Feature("paddle._C_ops:dropout", "Recompute"),
            Feature("paddle._C_ops:swiglu", "Recompute"),
            Feature("paddle._C_ops:full", "Recompute"),
            Feature("paddle.base.core:default_cpu_generator", "Recompute"),
        ),
        below="3.4",
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
    """Check that the installed framework has the features that its adapter needs; imports it.

    A version that is newer than the last tested one, and not refused, is warned of where the versions have an end.

    Args:
        name: of a backend; one that is not in :data:`FRAMEWORKS` needs nothing.

    Raises:
        MissingDependencyError: it is there, and lacks something or is too new; the message has the versions that work.
    """
    found = installed(name) if name in FRAMEWORKS else None
    if found is None:
        return
    framework = FRAMEWORKS[name]
    cure = f"Versions that work: {framework.versions}; pip install '{framework.requirement}'"
    if framework.below and _numbers(found) >= _numbers(framework.below):
        raise MissingDependencyError(
            f"{framework.package} {found} is newer than the versions whose private interfaces are known. {cure}"
        )
    if not Feature(name, "").is_there():
        return  # it cannot even be imported, which whoever imports the adapter is told
    lacks = [each for each in framework.features if not each.without and not each.is_there()]
    if lacks:
        needs = "; ".join(f"{each.path.replace(':', '.')}, for {each.purpose}" for each in lacks)
        raise MissingDependencyError(f"{framework.package} {found} lacks {needs}. {cure}")
    if framework.below and _numbers(found) > _numbers(framework.newest):
        warnings.warn(
            f"{framework.package} {found} is newer than {framework.newest}, the last version that tensorstash was "
            f"tested on, and its adapter depends on private interfaces; if gradients differ, install that version",
            TensorStashWarning,
            stacklevel=2,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
