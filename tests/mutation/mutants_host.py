"""Mutants of threads and host memory."""

WORKERS = ("tests/test_workers.py",)
PAGES = ("tests/stores/test_pages.py",)
BUFFERS = ("tensorstash/buffers.py", "tests/stores/test_pages.py", "tests/conformance/test_reference.py")

MUTANTS = [
    (
        "workers.py",
        "dropped call",
        "        self.give_up()\n        with self._lock:",
        "        with self._lock:",
        WORKERS,
    ),
    (
        "workers.py",
        "dropped release",
        "                self._todo.pop()\n                return False",
        "                return False",
        WORKERS,
    ),
    ("workers.py", "dropped check", "            if thread.job in self._todo:", "            if False:", WORKERS),
    ("workers.py", "dropped call", "                thread.is_given_up = True\n", "", WORKERS),
    (
        "workers.py",
        "dropped check",
        "        if self._crew.pid != os.getpid():\n            self._start()\n",
        "",
        WORKERS,
    ),
    ("workers.py", "dropped call", "    todo.clear()\n", "", WORKERS),
    ("workers.py", "dropped call", "        self._calls.put(None)  # it may have taken one with it\n", "", WORKERS),
    ("workers.py", "boundary", "if len(self._todo) <= idle or", "if len(self._todo) < idle or", WORKERS),
    ("workers.py", "boundary", "len(self.threads) >= self._limit", "len(self.threads) > self._limit", WORKERS),
    ("workers.py", "negation", "return not thread.is_given_up", "return True", WORKERS),
    ("workers.py", "wrong value", "        self._is_stopped = True\n", "", WORKERS),
    ("pool.py", "dropped release", "            self._used -= pages.size\n", "", PAGES),
    ("pool.py", "dropped call", "            self._trim(self._most_used - self._used)\n", "", PAGES),
    ("pool.py", "dropped check", "if self._shelf.pid != os.getpid():", "if False:", PAGES),
    ("pool.py", "dropped call", "        weakref.finalize(lease, shelf.give, pages).atexit = False\n", "", PAGES),
    (
        "pool.py",
        "boundary",
        "surplus = -(-excess // HUGE_PAGE) * HUGE_PAGE",
        "surplus = excess // HUGE_PAGE * HUGE_PAGE",
        PAGES,
    ),
    (
        "pool.py",
        "dropped lock",
        "        while self._returned and self._lock.acquire(blocking=False):\n",
        "        while self._returned and self._lock.acquire():\n",
        PAGES,
    ),
    ("pages.py", "constant", "-raw.ctypes.data % HUGE_PAGE if huge else 0", "0", PAGES),
    ("pages.py", "wrong value", "flags, address) == address)", "flags, address) != 0)", PAGES),
    (
        "buffers.py",
        "wrong value",
        "whole_pages(nbytes + alignment)[alignment:]",
        "whole_pages(nbytes + alignment)[:nbytes]",
        BUFFERS,
    ),
    ("buffers.py", "dropped call", "    view.flags.writeable = False\n", "", BUFFERS),
    ("buffers.py", "dropped check", " or isinstance(lender(array).base, bytes)", "", BUFFERS),
]
