/* The instructions of AMX on a processor that does not have them: each raises SIGILL, whose handler does what it says
 * (tiles.h) and goes on behind it. So what a compiler made of csrc/kernels/gemm_amx.c is run, and not only its source.
 * For x86-64 Linux.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

#include "tiles.h"

/* An instruction by the fields of its VEX prefix, ModRM and SIB; `next` is the byte behind it. */
typedef struct {
    int opcode, prefix, mod, reg, rm, vvvv;
    const uint8_t *address, *next;
    int64_t index;
} instruction;

static int64_t general(const ucontext_t *context, int number) {
    static const int PLACE[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[PLACE[number]];
}

/* Reads an instruction of the map 0F 38 with a VEX prefix of three bytes; false if there is another one. */
static bool decode(const ucontext_t *context, instruction *in) {
    enum { NO_INDEX = 4, NO_BASE = 5 };
    const uint8_t *at = (const uint8_t *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP];
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2) return false;
    const int x = at[1] & 0x40 ? 0 : 8, b = at[1] & 0x20 ? 0 : 8;
    in->prefix = at[2] & 3;
    in->vvvv = ~(at[2] >> 3) & 15;
    in->opcode = at[3];
    in->mod = at[4] >> 6;
    in->reg = at[4] >> 3 & 7;
    in->rm = at[4] & 7;
    in->index = 0;
    in->address = NULL;
    at += 5;
    if (in->mod != 3) {
        int64_t address = 0;
        int base = in->rm;
        if (base == 4) { /* a SIB byte */
            const int number = (*at >> 3 & 7) | x;
            if (number != NO_INDEX) in->index = (int64_t)((uint64_t)general(context, number) << (*at >> 6));
            base = *at++ & 7;
        }
        const bool alone = base == NO_BASE && in->mod == 0; /* a displacement without a base, or from the next byte */
        if (!alone) address = general(context, base | b);
        int32_t displacement = 0;
        if (in->mod == 1) displacement = (int8_t)*at++;
        if (in->mod == 2 || alone) {
            memcpy(&displacement, at, sizeof displacement);
            at += sizeof displacement;
        }
        if (alone && in->rm == NO_BASE) address = (int64_t)(uintptr_t)at;
        in->address = (const uint8_t *)(uintptr_t)(address + displacement);
    }
    in->next = at;
    return true;
}

/* Does what an instruction says; false if it is none of AMX. The index register of a load or store is its stride. */
static bool execute(const instruction *in) {
    enum { NONE, F3 = 2, F2 = 3 };
    const bool memory = in->mod != 3;
    if (in->opcode == 0x49 && in->prefix == NONE && memory && in->reg == 0)
        amx_loadconfig(in->address + in->index);
    else if (in->opcode == 0x49 && in->prefix == NONE && !memory && in->reg == 0 && in->rm == 0)
        amx_release();
    else if (in->opcode == 0x4B && in->prefix == F2 && memory)
        amx_load(in->reg, in->address, in->index);
    else if (in->opcode == 0x4B && in->prefix == F3 && memory)
        amx_store(in->reg, (uint8_t *)(uintptr_t)in->address, in->index);
    else if (in->opcode == 0x5C && in->prefix == F3 && !memory)
        amx_multiply(in->reg, in->rm, in->vvvv);
    else
        return false;
    return true;
}

static void on_illegal(int signal, siginfo_t *info, void *where) {
    (void)signal, (void)info;
    ucontext_t *const context = where;
    instruction in;
    if (!decode(context, &in) || !execute(&in)) abort();
    context->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)in.next;
}

__attribute__((constructor)) static void install(void) {
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
}
