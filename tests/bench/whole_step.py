"""Whole training steps on the CPU: step time and activation memory against no hooks and against recomputation.

    python tests/bench/whole_step.py                       # every workload, 1 and 2 threads, all methods
    python tests/bench/whole_step.py --workload gpt --threads 1 --method none --method disk_spill

Each figure is the median of ``--rounds`` fresh processes; the methods take turns, so that a machine whose speed drifts
is fair to all. Memory is the peak resident size over the steps (VmHWM, reset before each) less the floor with model,
gradients and optimizer state. Prints one Markdown table; ``--json FILE`` keeps everything.
"""

import argparse
import ctypes.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

WORKLOADS = ("gpt", "gpt_dropout", "resnet", "paddle_gpt")
METHODS = ("none", "recompute", "disk_spill")
ALLOCATORS = ("default", "threshold", "tcmalloc")


def environment(allocator: str, threads: int) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_")}
    env["OMP_NUM_THREADS"] = str(threads)
    if allocator == "threshold":
        env["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    if allocator == "tcmalloc":
        library = ctypes.util.find_library("tcmalloc_minimal")
        if library is None:
            raise SystemExit("tcmalloc is not installed (Debian: libtcmalloc-minimal4)")
        env["LD_PRELOAD"] = library
    return env


def work(workload: str, method: str, steps: int, threads: int, directory: str, limit: str) -> None:
    import gc
    import hashlib
    from contextlib import nullcontext
    from time import perf_counter

    import tensorstash as ts
    from benchmarks import memory

    if workload == "paddle_gpt":
        from paddle_workloads import build
    else:
        from torch_workloads import build
    step, floor_step, gradients = build(workload, recompute=method == "recompute", threads=threads)
    framework = "paddle" if workload.startswith("paddle") else "torch"
    scope: Any = nullcontext()
    if method not in ("none", "recompute"):
        limits = ts.Limits(in_flight=limit, ahead=limit)
        policy = ts.parse(method.replace("disk_spill", f"disk_spill:directory={directory}"))
        scope = ts.stash(policy, framework=framework, limits=limits)
    floor_step()
    gc.collect()
    memory.reset_peak()
    floor = memory.peak_bytes()
    seconds, peaks, digest = [], [], ""
    for number in range(steps):
        memory.reset_peak()
        started = perf_counter()
        step(number, scope)
        seconds.append(perf_counter() - started)
        peaks.append(memory.peak_bytes() - floor)
        if number == 0:
            sha = hashlib.sha256()
            for array in gradients():
                sha.update(array.tobytes())
            digest = sha.hexdigest()
    stats = scope.stats().to_dict() if isinstance(scope, ts.Stash) else {}
    print(json.dumps({"seconds": seconds, "peaks": peaks, "digest": digest, "stats": stats}))


def measure(workload: str, method: str, allocator: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--work", workload, "--method", method, "--threads", str(threads)]
    command += ["--steps", str(options.steps), "--directory", options.directory, "--limit", options.limit]
    done = subprocess.run(command, env=environment(allocator, threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{workload}, {method}, {allocator}: exit status {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--method", action="append", help="none, recompute, or a policy as one line")
    parser.add_argument("--allocator", action="append", choices=ALLOCATORS)
    parser.add_argument("--threads", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit", default="64 MiB", help="bytes in flight and ahead")
    parser.add_argument("--directory", default="/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        (method,), (threads,) = options.method, options.threads
        work(options.work, method, options.steps, threads, options.directory, options.limit)
        return

    methods = options.method or list(METHODS)
    rows: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for workload in options.workload or WORKLOADS:
        for threads in options.threads or (1, 2):
            if workload == "paddle_gpt" and threads > 1:
                continue  # Paddle sets OMP_NUM_THREADS=1 itself
            plan = [("none", "default")]
            plan += [(method, allocator) for allocator in options.allocator or ALLOCATORS[1:] for method in methods]
            for _ in range(options.rounds):
                for method, allocator in dict.fromkeys(plan):
                    result = measure(workload, method, allocator, threads, options)
                    rows.setdefault((workload, threads, method, allocator), []).append(result)
                    print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(
        "| workload | threads | allocator | method | step s | ratio | activations MiB | ratio | removed seen | grads |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (workload, threads, method, allocator), results in rows.items():
        base = rows[workload, threads, "none", "default"]
        time, memory = _time(results), _peak(results)
        saved = [r["stats"]["stashed"]["nbytes"] / len(r["seconds"]) for r in results if r["stats"]]
        seen = f"{(_peak(base) - memory) / median(saved):.2f}" if saved else ""
        equal = "" if workload == "gpt_dropout" and method == "recompute" else _same(base, results)
        print(
            f"| {workload} | {threads} | {allocator} | {method} | {time:.3f} | {time / _time(base):.3f} | "
            f"{memory / 2**20:.0f} | {memory / _peak(base):.3f} | {seen} | {equal} |"
        )
    if options.json:
        options.json.write_text(json.dumps([[*key, results] for key, results in rows.items()]))


def _time(results: list[dict[str, Any]]) -> float:
    return median(median(r["seconds"][1:]) for r in results)


def _peak(results: list[dict[str, Any]]) -> float:
    return median(max(r["peaks"]) for r in results)


def _same(base: list[dict[str, Any]], results: list[dict[str, Any]]) -> str:
    return "equal" if {r["digest"] for r in base} == {r["digest"] for r in results} else "DIFFER"


if __name__ == "__main__":
    main()
