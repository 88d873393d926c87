/* In place of the compiler's header: its names for the instructions of AMX, as functions (tiles.h). */
#ifndef AMX_PLAIN_H
#define AMX_PLAIN_H

#include "../tiles.h"

/* The number of a tile is part of an instruction: only a literal makes one of these. */
#define AMX_0                       0
#define AMX_1                       1
#define AMX_2                       2
#define AMX_3                       3
#define AMX_4                       4
#define AMX_5                       5
#define AMX_6                       6
#define AMX_7                       7
#define _tile_loadconfig(from)      amx_loadconfig(from)
#define _tile_release()             amx_release()
#define _tile_loadd(t, at, stride)  amx_load(AMX_##t, at, (int64_t)(stride))
#define _tile_stored(t, at, stride) amx_store(AMX_##t, at, (int64_t)(stride))
#define _tile_dpbf16ps(y, x, w)     amx_multiply(AMX_##y, AMX_##x, AMX_##w)

#endif
