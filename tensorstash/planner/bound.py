"""How cheap any plan could be: a linear program, where SciPy is installed."""

from importlib.util import find_spec

import numpy as np

from tensorstash.planner.model import Floats, Ints, Problem
from tensorstash.planner.pressure import pressure

_POINTS = 60
"""Points in time from which links are constrained: fewer only make the bound lower."""

_HARD = 12
"""The same, where memory is."""


def is_available() -> bool:
    """Whether SciPy is installed."""
    return find_spec("scipy") is not None


def lower_bound(problem: Problem) -> float | None:
    """Return seconds that every plan adds to the step at least; None without SciPy, or if no plan holds the budget.

    What is relaxed: a record may be split among its options, and waiting for a link that is behind frees bytes at the
    best rate of any record on it.

    Args:
        problem: the step.

    Raises:
        ImportError: SciPy is installed, and broken.
    """
    if not is_available():
        return None
    from scipy.optimize import linprog  # type: ignore[import-untyped,unused-ignore]
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped,unused-ignore]

    table = problem.table
    count, width = table.count, table.width
    if not count:
        return 0.0
    scale = float(table.nbytes.max())
    usable = np.isfinite(table.seconds)
    variables = count * width
    out_stall, back_stall = variables, variables + 1
    rows: list[int] = []
    cols: list[int] = []
    values: list[float] = []
    limits: list[float] = []

    def add(where: Ints, what: Floats, limit: float) -> None:
        rows.extend([len(limits)] * len(where))
        cols.extend(where.tolist())
        values.extend(what.tolist())
        limits.append(limit)

    row, place = np.nonzero(usable)
    variable = row * width + place
    nbytes, left = table.nbytes[row], table.resident[row, place]
    is_away = place > 0
    saved, freed = table.saved[row], table.freed[row]
    wanted, used, released = table.wanted[row], table.used[row], table.released[row]
    carried = is_away & (table.link[row, place] >= 0)
    # What would come back before it has left stays all the time: so it never leaves for less than it takes here.
    worst = pressure(table, np.zeros(count, np.int64), problem.room).held
    points = table.points
    chosen = np.unique(np.concatenate([np.linspace(0, points.size - 1, _HARD).astype(int), [worst.argmax()]]))
    points = points[chosen]

    def takes(at: float) -> Floats:
        there = (saved <= at) & (at < released)
        in_use = there & ((at < freed) | ((at >= wanted) & (at < used)))
        return np.where(
            is_away,
            np.where(in_use, nbytes, 0.0) + np.where(there & (at >= freed), left, 0.0),
            np.where(there, nbytes, 0.0),
        )

    for at in points:
        occupied = takes(at)
        taken = occupied > 0
        add(variable[taken], occupied[taken] / scale, problem.room / scale)
    turn = float(table.points[worst.argmax()])
    at_turn = takes(turn)
    ways = [(table.out_s[row, place], freed, 1.0), (table.back_s[row, place], wanted, -1.0)]
    waiting: list[int] = []  # variables: bytes at the worst point that are on their way
    for number in range(len(table.links)):
        mine = carried & (table.link[row, place] == number)
        for (seconds, times, way), stall in zip(ways, (out_stall, back_stall), strict=True):
            busy = mine & (seconds > 0)
            if not busy.any():
                continue
            waiting.append(variables + 2 + len(waiting))
            rate = float((nbytes[busy] / seconds[busy]).min())
            before = busy & (way * times <= way * turn)
            for at in _thinned(times[before] - way * 1e-12):
                late = before & (way * times > way * at)
                where = np.concatenate([variable[late], [stall, waiting[-1]]])
                what = np.concatenate([rate * seconds[late] / scale, [-rate / scale, -1.0]])
                add(where, what, rate * abs(turn - float(at)) / scale)
    taken = at_turn > 0
    where = np.concatenate([variable[taken], np.array(waiting, int)])
    add(where, np.concatenate([at_turn[taken] / scale, np.ones(len(waiting))]), problem.room / scale)
    total = variables + 2 + len(waiting)
    matrix = coo_matrix((values, (rows, cols)), shape=(len(limits), total))
    ones = coo_matrix((np.ones(len(variable)), (row, variable)), shape=(count, total))
    cost = np.zeros(total)
    cost[variable] = table.seconds[row, place]
    cost[[out_stall, back_stall]] = 1.0
    upper = np.zeros(total)
    upper[variable] = 1.0
    upper[variables:] = np.inf
    unit = float(cost[variable].max()) or 1.0
    result = linprog(
        cost / unit,
        A_ub=matrix.tocsr(),
        b_ub=limits,
        A_eq=ones.tocsr(),
        b_eq=np.ones(count),
        bounds=np.column_stack([np.zeros(total), upper]),
        method="highs",
    )
    return float(result.fun) * unit if result.status == 0 else None


def _thinned(times: Floats) -> Floats:
    known: Floats = np.unique(times)
    if known.size <= _POINTS:
        return known
    thinned: Floats = known[np.unique(np.linspace(0, known.size - 1, _POINTS).astype(int))]
    return thinned
