/* A page of a mapped file that cannot be read makes the system send SIGBUS to the thread that touched it. A guard turns
 * that into a second return of rc_try, as setjmp does, with the address in `fault`.
 *
 *     rc_enter(&guard, rc_top, begin, length);
 *     if (rc_try(guard)) { ... read ...; rc_leave(&guard, rc_top); } else { ... guard.fault ... }
 *
 * Between enter and leave: no Python, no lock, no allocation, only reads of the range and writes elsewhere. The function
 * that does this has no loop and no other work: a local variable that is changed there has no defined value after the
 * second return.
 */
#ifndef RC_GUARD_H
#define RC_GUARD_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

/* GCC warns of every variable of the function that an inlined reader keeps in a register; none is read afterwards. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wclobbered"
#endif

typedef struct rc_guard {
    sigjmp_buf at;
    const uint8_t *begin;
    const uint8_t *end;
    const uint8_t *fault;
    struct rc_guard *previous;
} rc_guard;

#define rc_try(guard) (sigsetjmp((guard).at, 0) == 0)

/* `top` is the innermost guard of the calling thread. */
static inline void rc_enter(rc_guard *guard, rc_guard **top, const uint8_t *begin, int64_t length) {
    guard->begin = begin;
    guard->end = begin + length;
    guard->fault = NULL;
    guard->previous = *top;
    *top = guard;
}

static inline void rc_leave(rc_guard *guard, rc_guard **top) { *top = guard->previous; }

#endif
