/* The team of a thread: what shares out work, and among how many; see tensorstash.kernels.team.
 *
 * A pool of our own would have to wake threads while those of the framework spin on the same cores, waiting for the
 * next operation; so the framework's own pool does the work, through the one function that every OpenMP library for
 * GCC's code has. */

#include "team.h"

#include <fenv.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "tables.h"

typedef void Parallel(void (*work)(void *), void *of, unsigned threads, unsigned flags);

/* Of the calling thread. In a forked child, which has none of the threads, it does not count. */
static _Thread_local struct {
    Parallel *parallel;
    unsigned threads;
    pid_t pid;
} team;

typedef struct {
    Part *part;
    void *of;
    size_t count, grain;
    atomic_size_t next;
} Shared;

/* Parts are taken as threads come to them: one that is late, or never comes, keeps nobody waiting. */
static void
take_parts(void *of)
{
    Shared *const shared = of;
    fenv_t before;
    /* Threads may differ in how they round and whether they flush subnormals, results must not. */
    const int has_mode = fegetenv(&before) == 0 && fesetenv(FE_DFL_ENV) == 0;
    size_t first;
    while ((first = atomic_fetch_add(&shared->next, shared->grain)) < shared->count) {
        const size_t left = shared->count - first;
        shared->part(shared->of, first, first + (left < shared->grain ? left : shared->grain));
    }
    if (has_mode) {
        fesetenv(&before);
    }
}

void
in_parts(Part *part, void *of, size_t count, size_t grain)
{
    Shared shared = {part, of, count, grain, 0};
    if (count > grain && team.threads > 1 && team.pid == getpid()) {
        /* Always all of them: a pool that is asked for fewer ends the others. */
        team.parallel(take_parts, &shared, team.threads, 0);
    }
    take_parts(&shared);
}

static PyObject *
join_team(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address;
    unsigned threads;
    if (!PyArg_ParseTuple(args, "KI:join_team", &address, &threads)) {
        return NULL;
    }
    team.parallel = (Parallel *)(uintptr_t)address;
    team.threads = address ? threads : 1;
    team.pid = getpid();
    Py_RETURN_NONE;
}

static PyObject *
leave_team(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    team.threads = 1;
    Py_RETURN_NONE;
}

PyMethodDef team_functions[] = {
    {"join_team", join_team, METH_VARARGS,
     "join_team(address, threads)\n\nLet the function at an address share out this thread's work from now on."},
    {"leave_team", leave_team, METH_NOARGS, "leave_team()\n\nDo this thread's work on this thread from now on."},
    {NULL, NULL, 0, NULL},
};
