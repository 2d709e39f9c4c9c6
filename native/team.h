/* Work on all cores at once: parts of one array, shared out among the threads that the framework computes with. */

#ifndef TENSORSTASH_TEAM_H
#define TENSORSTASH_TEAM_H

#include <stddef.h>

/* Do the items from first to last, but for the last. Called on any thread, on several at once. */
typedef void Part(void *of, size_t first, size_t last);

/* Call part for all items, `grain` of them at a time, and return when none is running. */
void in_parts(Part *part, void *of, size_t count, size_t grain);

#endif
