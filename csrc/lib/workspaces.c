/* The workspaces of kernels that run while a model is loaded: the library keeps no memory of its own. (The Python
 * module has its pool instead.)
 */
#include "platform.h"
#include "pool.h"

enum { LINE = 64 };

void *pool_take(size_t bytes) { return platform_memory(LINE, bytes ? bytes : 1); }
void pool_give(void *memory) { platform_free(memory); }
