"""The warnings of a session without effect: one each, with the cure."""

from collections.abc import Iterable
from weakref import finalize

from tensorstash.abilities import SupportsCheckpoints, SupportsGraph
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.stats import Stats
from tensorstash.errors import say, user_line
from tensorstash.host import native
from tensorstash.host.mounts import directories_in_memory
from tensorstash.policies.limits import Limits
from tensorstash.sizes import format_bytes

_JUDGED_ENTRIES = 3
"""Entries of a scope after which it is judged: the first may be a trial, and three are like all others."""

_STEPS = 3

_MANY = 1000  # saved tensors that are enough to judge by in the first entry, which may be a whole training

_LARGE = 2**20  # bytes saved in a step below which nobody looks for gains

_ALL = 0.9

_CURES = {
    "smaller than min_bytes": "lower min_bytes",
    "already in host memory": "CpuOffload moves tensors of accelerators only; use DiskSpill(directory)",
    **dict.fromkeys(
        ("is never quantized", "is not cast", "is not a mask", "does not accept"),
        "add a step that takes them: | disk_spill",
    ),
    "kept by policy": "the steps of the policy do not apply to the saved tensors: check dtypes and rules",
    "policy": "no rule of the policy selects them: check its rules",
    "subclass": "only checkpoint makes tensors of a subclass, such as DTensor, take less memory",
    "tracing": "enter the stash where the model runs, not where it is traced",
    "deferred computation": "such a device has nothing to move while it records a graph: use its own checkpointing",
    "opaque layout": "the device does not show the bytes of its tensors: train on another one, or checkpoint",
    "no real memory": "tensors of the meta device and fake ones have no bytes: enter the stash where the model trains",
    "device": "this PyTorch knows tensors of that device as something of its own: use checkpointing, and report it",
}


class Adviser:
    """Judges a session, and says each thing once: as a warning, to the logger, in ``stats().advice``."""

    def __init__(self, ledger: Ledger, limits: Limits, *, only_keeps: bool) -> None:
        self.ledger, self._limits, self._only_keeps, self._line = ledger, limits, only_keeps, user_line()
        self.said: list[str] = []
        self.watches = True
        """Whether :meth:`asked` is still wanted."""
        self._may_gain = self._is_judged = self._is_compiling = False
        self._entries = self._ended = 0
        """Of the scope, and those with gradients that have ended."""
        self.steps_ended = 0
        """Steps whose successor has begun."""
        self._before = self._step_bytes = self._covered_bytes = 0
        self._latest = Stats()
        self._unentered = self._ending = ""
        self._asked: dict[int, int] = {}
        self._most_at_once = 0

    def expect_gain(self) -> None:
        """Note that something is to leave its memory, or to shrink."""
        self._may_gain = True

    def covered(self, inner: "Adviser", stashed_bytes: int) -> None:
        """Note that another scope was in force inside of this one, and the bytes that it stashed there."""
        if inner is not self and not inner._only_keeps:
            self._covered_bytes += stashed_bytes

    def say(self, message: str) -> None:
        """Say it, unless it was said; the warning points at the line that made the session."""
        message = self._ending + message
        if message not in self.said:
            self.said.append(message)
            say(message, self._line)

    def judge_directories(self, directories: Iterable[str]) -> None:
        """Say so if one of the directories that are spilled to is kept in memory."""
        if in_memory := directories_in_memory(directories):
            self.say(
                f"{', '.join(in_memory)} is kept in memory (tmpfs), so that spilling to it saves nothing; pass a "
                "directory on a disk: DiskSpill(directory)"
            )

    def entered(self, backend: object) -> None:
        """Note one more entry of the scope; say so if the policy stores inside of a checkpoint, on this thread."""
        self._entries += 1
        if self._entries > _JUDGED_ENTRIES:
            return
        self._is_compiling = isinstance(backend, SupportsGraph) and backend.is_compiling()
        if not self._only_keeps and isinstance(backend, SupportsCheckpoints) and backend.repeats.is_checkpointed():
            self.say(
                "a wrapped block is called inside of a checkpoint: its tensors are stored, though the checkpoint is to "
                "compute them again. Wrap the whole model instead, around its checkpoints"
            )

    def expect_entry(self, owner: object, message: str) -> None:
        """Judge the scope where ``owner`` goes, or the process ends; say ``message`` if it was never entered."""
        self._unentered = message
        finalize(owner, self._gone)

    def expect_no_entry(self) -> None:
        """Say nothing of a scope that was never entered."""
        self._unentered = ""

    def removed(self) -> None:
        """Say so if the scope was never entered."""
        if self._entries == 0 and self._unentered:
            self.say(self._unentered)

    def _gone(self) -> None:
        # The collector may run this inside of any method of the ledger: its numbers are those of the last entry.
        self.removed()
        self._ending = "a stash has ended without effect: "
        if self._ended:
            self._step_bytes = max(self._step_bytes, self._latest.stashed.nbytes - self._before)
            self.judge(self._latest, is_last=True)

    def asked(self, graph: int | None, nbytes: int) -> None:
        """Note that a saved tensor was asked for, by a compiled graph or none."""
        if graph is not None:
            self._asked[graph] = self._asked.get(graph, 0) + nbytes
            self._most_at_once = max(self._most_at_once, self._asked[graph])

    def step_ended(self) -> None:
        """Note the end of a step."""
        stashed_bytes = self.ledger.stashed_bytes
        self.steps_ended += 1
        self._step_bytes = max(self._step_bytes, stashed_bytes - self._before)
        self._before = stashed_bytes
        self._asked.clear()

    def entry_ended(self) -> bool:
        """Note the end of an entry in which gradients were recorded; return whether :meth:`judge` is wanted."""
        self._ended += 1
        return self._ended <= _JUDGED_ENTRIES or (self.watches and self.steps_ended >= _STEPS)

    def judge(self, stats: Stats, *, is_last: bool = False) -> None:
        """Say all that is certain by now."""
        self._latest = stats
        if not self._is_judged and (is_last or self._ended >= _JUDGED_ENTRIES or stats.seen.tensors >= _MANY):
            self._is_judged = True
            self._judge_effect(stats)
        if self.watches and (is_last or self.steps_ended >= _STEPS):
            self.watches = False
            if self._step_bytes >= _LARGE:
                self._judge_gain(stats)

    def _judge_effect(self, stats: Stats) -> None:
        if self._covered_bytes > 0 and self._covered_bytes >= _ALL * (self._covered_bytes + stats.stashed.nbytes):
            self.say(
                f"another stash or wrap inside of this one takes its place: {format_bytes(self._covered_bytes)} were "
                f"stashed there, and {format_bytes(stats.stashed.nbytes)} here. Only the innermost has an effect: use "
                "one of them, or chain and route the policies"
            )
        elif not stats.seen.tensors:
            self.say(
                "nothing was seen: autograd saved no tensor inside. The forward pass has to run inside, on the thread "
                "that enters, and neither under hooks entered later nor as one program of paddle.jit.to_static"
            )
        elif not (self._only_keeps or stats.stashed.tensors or stats.deduplicated.tensors or stats.recomputed):
            kept = sorted(stats.kept.items(), key=lambda item: item[1].nbytes, reverse=True)
            why = "; ".join(f"{tally.tensors} of {format_bytes(tally.nbytes)}: {reason}" for reason, tally in kept)
            cures = (cure for part, cure in _CURES.items() if part in kept[0][0])
            cure = next(cures, "no activation is among them; switch checkpointing off if it is on")
            self.say(f"nothing was stashed of {stats.seen.tensors} saved tensors ({why}): {cure}")

    def _judge_gain(self, stats: Stats) -> None:
        saved = self._step_bytes
        given = {name: nbytes for name, nbytes in self._limits.given().items() if nbytes}
        is_declined = stats.declined.tensors and not stats.stored and self._ended > 1
        if is_declined or stats.declined.nbytes >= _ALL * stats.stashed.nbytes:
            self.say(
                f"the policy shrinks nothing: {format_bytes(stats.declined.nbytes)} of "
                f"{format_bytes(stats.stashed.nbytes)} are kept after all, since their content does not shrink or "
                "backward needs it exactly. Use DiskSpill(directory)"
            )
        elif not self._may_gain:
            self.say(
                "the policy shrinks nothing: tensors in host memory are copied to host memory as they are. Use "
                "DiskSpill(directory)"
            )
        elif sum(given.values()) > saved:
            part = format_bytes(max(saved // 8, 1))
            under_way = " and ".join(f"{name} is {format_bytes(nbytes)}" for name, nbytes in given.items())
            self.say(
                f"limits are larger than the possible gain: a step stashes {format_bytes(saved)}, and {under_way}, "
                "which come on top, so that the peak may not fall. Leave them out, or pass limits=Limits("
                + ", ".join(f"{name}='{part}'" for name in given)
                + ")"
            )
        if self._most_at_once >= _ALL * saved:
            self.say(
                "one compiled graph asks for everything at once: its backward holds all that was stashed at the same "
                "time, and the peak does not fall. Compile the blocks instead of the whole model "
                "(`for block in model.layers: block.compile()`)"
            )
        elif self._is_compiling and not self._most_at_once:
            self.say(
                "torch.compile gains nothing here: the model was wrapped first, and no graph is inside of it. Compile "
                "the blocks, then wrap the model (`for block in model.layers: block.compile()`)"
            )
        if native.functions is None:
            self.say(
                "the compiled part of tensorstash is missing, so that NumPy does its work, several times slower: "
                "install a C compiler and reinstall, or install a wheel"
            )
