"""Steps to be planned: small random ones, and ones like a language model's."""

from dataclasses import replace
from itertools import product

import numpy as np

from tensorstash.planner.model import Option, Problem, Record, SavedClass
from tensorstash.planner.pressure import pressure

Choice = tuple[int, ...]


def random_problem(seed: int, count: int) -> Problem:
    """Return a step of a few records with up to four options each, and a budget between nothing and everything."""
    rng = np.random.default_rng(seed)
    records = []
    for place in range(count):
        nbytes = int(rng.integers(10, 100))
        saved = place + rng.uniform(0, 0.5)
        freed = saved + rng.uniform(0.1, 2.0)
        wanted = max(2.0 * count - place + rng.uniform(0, 0.5), freed + 0.1)
        options = [Option("keep")]
        if rng.random() < 0.7:
            options.append(Option("compress", int(nbytes * rng.uniform(0.3, 0.9)), rng.uniform(0.01, 0.5)))
        if rng.random() < 0.7:
            took = nbytes / 100 * rng.uniform(0.5, 2.0)
            options.append(Option("disk", 0, rng.uniform(0, 0.05), "disk", took, took))
        if rng.random() < 0.3:
            options.append(Option("recompute", 0, rng.uniform(0.1, 2.0)))
        key = SavedClass("", "Mul", "float32", (nbytes,), place)
        records.append(Record(key, nbytes, saved, freed, wanted, wanted + 0.4, tuple(options)))
    total = sum(record.nbytes for record in records)
    return Problem(tuple(records), int(total * rng.uniform(0.2, 1.0)), step_s=3.0 * count)


def language_model(layers: int, share: float, *, link: float = 50e9) -> Problem:
    """Return a step like that of a language model on an accelerator: 13 records a layer, with five options."""
    rng = np.random.default_rng(0)
    tokens, hidden, inner, memory, flops = 8192, 4096, 14336, 3.5e12, 5e14
    widths = [hidden, hidden, hidden, hidden // 4, hidden // 4, *[hidden] * 4, *[inner] * 4]
    rebuilt = [0, 1, 0, 0, 0, 0, 2, 0, 1, 0, 0, 1, 1]
    work = [
        0,
        3 * hidden**2,
        0,
        0,
        0,
        tokens * hidden,
        2 * hidden**2,
        0,
        4 * hidden * inner,
        0,
        0,
        0,
        2 * hidden * inner,
    ]
    rows, clock = [], 0.0
    for layer in range(layers):
        size = rng.uniform(0.7, 1.3)
        for site, (width, kind, each) in enumerate(zip(widths, rebuilt, work, strict=True)):
            nbytes = int(2 * width * tokens * size)
            rows.append((site, layer, nbytes, clock, kind))
            clock += tokens * each * size / flops + 1.5 * nbytes / memory
    turn = clock * 1.02
    records = []
    for site, layer, nbytes, saved, kind in rows:
        wanted = turn + 2 * (turn - saved)
        options = [Option("keep"), Option("int8", int(0.52 * nbytes), 3.2 * nbytes / memory)]
        options.append(Option("lossless", int(0.76 * nbytes), 4.4 * nbytes / memory))
        if kind:
            options.append(Option("recompute", 0, (4 - kind) * nbytes / memory))
        options.append(Option("host", 0, 0.02 * nbytes / link, "copy", nbytes / link, nbytes / link))
        key = SavedClass("", f"site{site}", "bfloat16", (nbytes,), layer)
        records.append(Record(key, nbytes, saved, saved + 1e-6, wanted, wanted + 1e-5, tuple(options)))
    total = sum(record.nbytes for record in records)
    return Problem(tuple(records), int(total * share), step_s=3 * turn)


def all_choices(problem: Problem) -> list[Choice]:
    """Return every choice there is."""
    return list(product(*(range(len(record.options)) for record in problem.records)))


def cheapest(problem: Problem) -> float:
    """Return the cost of the best of all choices; infinite if none holds the budget."""
    table = problem.table
    return min(pressure(table, np.array(choice), problem.room).cost for choice in all_choices(problem))


def backwards(problem: Problem) -> Problem:
    """Return the step as it looks from its end: what is released last is saved first."""
    end = max(record.released for record in problem.records)
    return replace(
        problem,
        records=tuple(
            replace(
                record,
                saved=end - record.released,
                freed=end - record.wanted,
                wanted=end - record.freed,
                released=end - record.saved,
                options=tuple(replace(each, out_s=each.back_s, back_s=each.out_s) for each in record.options),
            )
            for record in problem.records
        ),
    )


def replayed(problem: Problem, choice: Choice) -> tuple[float, float]:
    """Run a step as a machine would; return the seconds that the program has waited, and the most bytes held.

    One event after the other: the program saves and asks, a link carries one record at a time, and the program waits
    before it saves what there is no room for, as long as something is on its way out. What comes back is fetched
    as late as the link allows: the same, seen from the end of the step (:func:`backwards`).
    """
    waited = most = 0.0
    held: dict[int, float] = {}
    leaves: dict[int, float] = {}
    link_free = 0.0
    events = sorted(
        [(record.saved, 1, row) for row, record in enumerate(problem.records)]
        + [(record.freed, 0, row) for row, record in enumerate(problem.records)]
    )

    def gone(now: float) -> None:
        for row in [row for row, at in leaves.items() if at <= now]:
            option = problem.records[row].options[choice[row]]
            held[row] = option.resident
            del leaves[row]

    for at, kind, row in events:
        now = at + waited
        gone(now)
        record = problem.records[row]
        option = record.options[choice[row]]
        if kind == 0 and choice[row]:
            if option.link:
                link_free = max(link_free, now) + option.out_s
                leaves[row] = link_free
            else:
                held[row] = option.resident
        elif kind == 1:
            while sum(held.values()) + record.nbytes > problem.room and leaves:
                first = min(leaves.values())
                waited += max(first - now, 0.0)
                now = max(now, first)
                gone(now)
            held[row] = record.nbytes
            most = max(most, sum(held.values()))
    return waited, most
