"""Mutants of what is made again: what is proved, what is refused, what is looked at once more."""

RULES = ("tests/torch/test_torch_recompute.py",)
FAULTS = ("tests/torch/test_torch_recompute.py",)
CHANGES = ("tests/torch/test_torch_recompute.py",)
OTHERS = ("tests/torch/test_torch_recompute.py",)
CONTRACT = ("tests/conformance/test_reference.py",)
ORDER = ("tests/torch/test_torch_order.py",)

MUTANTS = [
    ("engine/recompute/proofs.py", "dropped check", "            why = fault()\n", "            why = None\n", FAULTS),
    (
        "engine/recompute/proofs.py",
        "dropped check",
        "if known is not None and self._step - known < _STEPS and not always:",
        "if known is not None and not always:",
        FAULTS,
    ),
    (
        "engine/recompute/recomputer.py",
        "dropped call",
        "        producers.set_random_state(whole, before)\n",
        "",
        FAULTS,
    ),
    (
        "engine/recompute/recomputed.py",
        "dropped check",
        "        if sample != known[1]:\n",
        "        if False:\n",
        CHANGES,
    ),
    (
        "engine/recompute/recomputed.py",
        "dropped check",
        "        if version != known[0]:\n",
        "        if False:\n",
        CHANGES,
    ),
    (
        "engine/recompute/recomputed.py",
        "dropped check",
        "if self.sample is not None and self._look(whole) != self.sample:",
        "if False:",
        CHANGES,
    ),
    (
        "engine/recompute/recomputed.py",
        "dropped check",
        "if known is not None and checksum_of(tensor, self._producers) != known:",
        "if False:",
        CHANGES,
    ),
    (
        "engine/recompute/recomputer.py",
        "dropped call",
        "            inputs, marks = self._apart(inputs, marks)\n",
        "",
        CHANGES,
    ),
    (
        "engine/recompute/recomputer.py",
        "wrong value",
        "name = recipe.operation, recipe.settings, names",
        "name = recipe.operation, names",
        CHANGES,
    ),
    (
        "engine/recompute/recomputer.py",
        "dropped check",
        "is_summed = is_summed or (mark is not None and type(each) is not Leaf)",
        "is_summed = False",
        CHANGES,
    ),
    (
        "engine/recompute/inputs.py",
        "wrong value",
        "what = id(each.tensor) if mark is None else (state.backend.spec(each.tensor), mark)",
        "what = id(each.tensor)",
        CHANGES,
    ),
    (
        "engine/handle.py",
        "dropped check",
        "is_tensor = spec == payload.spec and not payload.is_private",
        "is_tensor = spec == payload.spec",
        ("tests/engine/test_kernels.py",),
    ),
    (
        "engine/recompute/recomputer.py",
        "dropped check",
        'if spec.kind != "float" or spec.device != "cpu" or not spec.nbytes:',
        'if spec.kind != "float" or spec.device != "cpu":',
        OTHERS,
    ),
    (
        "backends/torch/recipes/producers.py",
        "dropped check",
        "if recipe.settings is None or recipe.settings == _settings():",
        "if recipe:",
        CHANGES,
    ),
    (
        "backends/torch/recipes/neural.py",
        "dropped check",
        "return not training or place not in (3, 4)",
        "return True",
        CHANGES,
    ),
    (
        "engine/recompute/recomputed.py",
        "dropped check",
        "saved.version == own.version and sample == self.sample and saved.spec == own.spec",
        "saved.version == own.version and saved.spec == own.spec",
        CHANGES,
    ),
    ("engine/recompute/recomputed.py", "dropped call", "        self.saved.check()\n", "", CHANGES),
    (
        "engine/recompute/recomputed.py",
        "wrong value",
        "                yield from each.asks()\n",
        "                yield from ()\n",
        ORDER,
    ),
    (
        "abilities/search.py",
        "boundary",
        "        if levels > self._depth:\n",
        "        if levels > self._depth + 1:\n",
        OTHERS,
        "whoever takes the recipe adds what is behind its inputs and compares with depth again",
    ),
    (
        "abilities/search.py",
        "negation",
        "if self._ops is not None and not rule.is_view and rule.name not in self._ops:",
        "if self._ops is not None and rule.is_view and rule.name not in self._ops:",
        OTHERS,
    ),
    (
        "backends/torch/recipes/arithmetic.py",
        "wrong value",
        "    return torch.add(one, other, alpha=alpha)\n",
        "    return torch.add(one, other)\n",
        RULES,
    ),
    (
        "backends/torch/recipes/neural.py",
        "wrong value",
        "factor = own_factor if weight is None else own_factor * weight",
        "factor = own_factor",
        RULES,
    ),
]
