"""The composition of policies: each continues the plan of those before it; chains are checked when built."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache, reduce
from itertools import combinations, product
from typing import ClassVar, TypeVar

from tensorstash.errors import ConfigError, PlanError
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.protocols import Codec, StoreConfig
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides

PROBES: tuple[TensorSpec, ...] = tuple(
    TensorSpec((32, 128), contiguous_strides((32, 128)), 0, dtype, device)
    for device in ("cpu", "cuda:0")
    for dtype in DTYPES
)
"""Tensors that stand for all others when a policy is tested: every dtype, on the host and elsewhere."""

T = TypeVar("T")

_REMEMBERED_POLICIES = 256


class Policy(ABC):
    """A policy that composes with ``|``; a value that it cannot take is a ConfigError when it is built.

    A policy of a third party is a frozen dataclass that implements :meth:`extend`, usually by :func:`append`.

    >>> from tensorstash.policies import DiskSpill, Quantize
    >>> Quantize(4) | DiskSpill("/nvme", budget="2 GiB")  # doctest: +ELLIPSIS
    Chain(steps=(Quantize(bits=4, ...), DiskSpill(directory='/nvme', budget=2147483648)))
    """

    name: ClassVar[str]
    leads: ClassVar[bool] = False
    """Whether it stands first in a chain, and outside of any choice."""

    @abstractmethod
    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        """Return the plan that does ``plan`` and then the steps of this policy; pure.

        Args:
            plan: of the policies before this one for the same tensor.
            spec: the saved tensor itself, before any codec.

        Raises:
            PlanError: this policy cannot follow that plan; found when a chain is built.
        """

    def plan(self, spec: TensorSpec, /) -> Plan:
        """Return the plan of a tensor of this spec; pure."""
        plan = self.extend(Plan(), spec)
        return Plan(reason="kept by policy") if plan.keeps and not plan.reason else plan

    def choices(self) -> tuple[HookPolicy, ...]:
        """Return the policies of which one does the work, chosen per tensor; just this one if there is no choice."""
        return (self,)

    def alternatives(self) -> tuple[Plan, ...]:
        """Return every plan the policy can give, without repetition, whatever its selectors answer."""
        return _alternatives(self)

    def __or__(self, other: HookPolicy) -> "Chain":
        return Chain((self, other))

    def __ror__(self, other: HookPolicy) -> "Chain":
        return Chain((other, self))


@dataclass(frozen=True)
class Chain(Policy):
    """One policy after another, each on the result of those before it.

    A step that has nothing to do for a tensor is skipped: an int64 index passes ``Quantize`` untouched and is still
    spilled by the step after it. Chains within chains are flattened. A chain is refused if a step can do nothing, for
    any tensor, behind one before it, or would work on a payload on disk; each choice of a ``Route`` has to fit.

    Args:
        steps: policies in the order of packing; without any, tensors are kept.

    Raises:
        PlanError: a step can never do its work after those before it.

    >>> from tensorstash.policies import Compress, Quantize
    >>> Compress() | Quantize()  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    tensorstash.errors.PlanError: write quantize | compress: ...
    """

    name: ClassVar[str] = "chain"
    steps: tuple[HookPolicy, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.steps, tuple | list):
            raise ConfigError(f"chain.steps: got {self.steps!r}, expected a tuple of policies")
        for place, step in enumerate(self.steps):
            require_policy(step, path=f"chain.steps[{place}]")
        flat = (inner for step in self.steps for inner in (step.steps if isinstance(step, Chain) else (step,)))
        object.__setattr__(self, "steps", tuple(flat))
        _check_order(self.steps)

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return reduce(lambda so_far, step: extend(step, so_far, spec), self.steps, plan)


def append(
    plan: Plan, spec: TensorSpec, *, codecs: Iterable[Codec] = (), store: StoreConfig | None = None, reason: str = ""
) -> Plan:
    """Return the plan that does ``plan``, then the codecs that accept the result so far, then the store.

    Args:
        plan: of the policies before.
        spec: the saved tensor itself, before any codec.
        codecs: tried in order; one that does not accept the result of those before it is left out.
        store: where the payload goes; None for "stays where it is".
        reason: why, should nothing be done for this tensor.

    Raises:
        PlanError: a codec behind a disk, or a payload that would move to a faster tier or another disk.

    >>> from tensorstash.codecs import PackBits, Zstd
    >>> append(Plan(), PROBES[1], codecs=(PackBits(), Zstd(level=3)))  # PROBES[1] is int8
    Plan(codecs=(Zstd(level=3, shuffle=False),), store=None, reason='')
    """
    codecs = tuple(codecs)
    plan = _making_way(plan, spec, codecs)
    fitting = tuple(_fitting(plan, spec, codecs))
    here = plan.store
    if here is not None and store is not None and here.tier == store.tier == "disk" and here != store:
        raise PlanError(f"the payload is on disk already, in {here!r}")
    longer = plan.then(Plan(fitting, store))
    if not longer.rest.keeps or not reason:
        return longer
    return replace(longer, reason="; ".join(dict.fromkeys(filter(None, (plan.reason, reason)))))


def _making_way(plan: Plan, spec: TensorSpec, codecs: tuple[Codec, ...]) -> Plan:
    """Return the plan without a last codec that gives way to the first of those that follow."""
    if not plan.codecs or not codecs or not getattr(plan.codecs[-1], "gives_way", False):
        return plan
    shorter = replace(plan, codecs=plan.codecs[:-1])
    first = next(_fitting(shorter, spec, codecs), None)
    return plan if first is None or first.kind == "bytes->bytes" or first == plan.codecs[-1] else shorter


def _fitting(plan: Plan, spec: TensorSpec, codecs: tuple[Codec, ...]) -> Iterator[Codec]:
    at, are_bytes = spec.dense(), False
    for codec in plan.codecs:
        at, are_bytes = codec.encoded_spec(at), codec.kind.endswith("->bytes")
    for codec in codecs:
        if plan.codecs and getattr(codec, "gives_way", False):
            continue
        if (codec.kind == "bytes->bytes" or not are_bytes) and codec.accepts(at):
            yield codec
            at, are_bytes = codec.encoded_spec(at), codec.kind.endswith("->bytes")


def extend(policy: HookPolicy, plan: Plan, spec: TensorSpec) -> Plan:
    """Return :meth:`Policy.extend`, also for policies that only offer ``plan``: they see the saved tensor itself."""
    if isinstance(policy, Policy):
        return policy.extend(plan, spec)
    part = policy.plan(spec)
    return append(plan, spec, codecs=part.codecs, store=part.store, reason=part.reason)


def require_policy(value: object, *, path: str) -> HookPolicy:
    """Return a policy; any other value is a ConfigError with its path, such as ``"route.otherwise"``, and the cure."""
    got, cure = repr(value), "a policy such as CpuOffload() or 'disk_spill'"
    if isinstance(value, type):
        got, cure = f"the class {value.__name__}", f"a policy such as {value.__name__}()"
    elif isinstance(value, HookPolicy):
        return value
    elif isinstance(value, Codec):
        got, cure = f"the codec {value!r}", f"a policy; write Encode({value!r})"
    elif isinstance(value, StoreConfig):
        got, cure = f"the store {value!r}", f"a policy; write StoreIn({value!r})"
    elif isinstance(value, list | tuple):
        cure = "one policy; join the steps by |, or by Chain((...))"
    elif isinstance(value, Mapping):
        got, cure = "a dictionary", "a policy; pass tensorstash.from_dict(...) of it"
    raise ConfigError(f"{path}: got {got}, expected {cure}")


def built(policy: str, build: Callable[[], T]) -> T:
    """Return the codec or store that ``build`` makes of a policy's values; its errors name the policy."""
    try:
        return build()
    except ConfigError as error:
        raise ConfigError(f"{policy}: {error}") from error


@lru_cache(_REMEMBERED_POLICIES)
def _alternatives(policy: HookPolicy) -> tuple[Plan, ...]:
    # Asked for by every session, and a training loop may make one per step.
    return tuple(dict.fromkeys(plan for probe in PROBES for plan in _outcomes(policy, Plan(), probe)))


def _outcomes(policy: HookPolicy, plan: Plan, spec: TensorSpec) -> Iterable[Plan]:
    """Return the plans that :func:`extend` can return, whatever selectors answer."""
    if isinstance(policy, Chain):
        plans: Iterable[Plan] = (plan,)
        for step in policy.steps:
            plans = dict.fromkeys(longer for so_far in plans for longer in _outcomes(step, so_far, spec))
        return plans
    if not isinstance(policy, Policy):  # a plug-in's, which declares its plans
        return [append(plan, spec, codecs=each.codecs, store=each.store) for each in policy.alternatives()]
    if policy.choices() == (policy,):
        return (policy.extend(plan, spec),)
    return [longer for choice in policy.choices() for longer in _outcomes(choice, plan, spec)]


def _single(policy: HookPolicy) -> tuple[HookPolicy, ...]:
    """Return the policies without a choice that this one consists of."""
    parts = policy.steps if isinstance(policy, Chain) else policy.choices() if isinstance(policy, Policy) else (policy,)
    if parts == (policy,):
        return (policy,)
    return tuple(dict.fromkeys(single for part in parts for single in _single(part)))


def _check_order(steps: tuple[HookPolicy, ...]) -> None:
    for earlier, later in combinations(map(_single, steps), 2):
        for before, step in product(earlier, later):
            if obstacle := _obstacle(before, step):  # type: ignore[arg-type]  # frozen values
                raise PlanError(_instead(before, step, obstacle))


def _instead(before: HookPolicy, step: HookPolicy, obstacle: str) -> str:
    """Return the message about two steps: first the cure, as a line of text, then why."""
    first, second = in_text(before), in_text(step)
    if first == second:
        return f"write {first} once: {obstacle}"
    if _obstacle(step, before):  # type: ignore[arg-type]  # frozen values
        return f"write {first} or {second}, not both: {obstacle}"
    return f"write {second} | {first}: {obstacle}"


def in_text(policy: object) -> str:
    """Return a policy as it is written in one line, with those values alone that are not the defaults."""
    policy = getattr(policy, "codec", getattr(policy, "store", policy))  # by which their policies are named
    name = getattr(policy, "name", repr(policy))
    if not is_dataclass(policy):
        return str(name)
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    options = [f"{field.name}={values[field.name]}" for field in fields(policy) if values[field.name] != field.default]
    return f"{name}:{','.join(options)}" if options else str(name)


@lru_cache(_REMEMBERED_POLICIES)
def _obstacle(before: HookPolicy, step: HookPolicy) -> str | None:
    """Say why ``step`` can never do its work after ``before``, or return None if it sometimes can."""
    # A longer chain is built pair by pair with ``|``, and each time all of its pairs are checked.
    if getattr(step, "leads", False):
        return "it is about whole modules, not tensors"
    able = works = False
    for probe in PROBES:
        so_far = extend(before, Plan(), probe)
        try:
            together = extend(step, so_far, probe)
        except PlanError as error:
            return str(error)
        able |= bool(extend(step, Plan(), probe).codecs)
        works |= together.codecs != so_far.codecs
    return None if works or not able else "its input is encoded already"
