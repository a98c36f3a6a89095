/* The handler behind rc_guard.h, and its state: for the one module that has them.
 *
 * The handler is for faults within a guarded range of its own thread. All others go to the handler that was there
 * before (faulthandler's for one), or to the default, which ends the process. SA_NODEFER keeps the signal unblocked when
 * the handler is left by a jump, so that the mask needs no saving: a guard makes no system call.
 */
#ifndef RC_GUARD_HANDLER_H
#define RC_GUARD_HANDLER_H

#include <signal.h>

#include "rc_guard.h"

static _Thread_local rc_guard *rc_guards;
static _Thread_local int rc_passing_on;
static struct sigaction rc_before;

static void rc_pass_on(int signal_number, siginfo_t *info, void *context) {
    int sent = info->si_code <= 0; /* by a process, not by a read */
    if (sent && rc_before.sa_handler == SIG_IGN) {
        return;
    }
    if (rc_passing_on || rc_before.sa_handler == SIG_DFL || rc_before.sa_handler == SIG_IGN) {
        /* Nobody to ask, or who was asked passed it back: the default takes effect when the read is tried again. */
        signal(signal_number, SIG_DFL);
        if (sent) {
            raise(signal_number);
        }
        return;
    }
    rc_passing_on = 1;
    if (rc_before.sa_flags & SA_SIGINFO) {
        rc_before.sa_sigaction(signal_number, info, context);
    } else {
        rc_before.sa_handler(signal_number);
    }
    rc_passing_on = 0;
}

static void rc_on_bus_error(int signal_number, siginfo_t *info, void *context) {
    const uint8_t *fault = (const uint8_t *)info->si_addr;
    rc_guard *guard = rc_guards;
    if (info->si_code > 0 && guard != NULL && fault >= guard->begin && fault < guard->end) {
        rc_guards = guard->previous;
        guard->fault = fault;
        siglongjmp(guard->at, 1);
    }
    rc_pass_on(signal_number, info, context);
}

/* Make the handler the process's; again, where another one has taken its place. Returns 0, or -1 with errno. */
static int rc_install(void) {
    struct sigaction now, mine;
    if (sigaction(SIGBUS, NULL, &now) != 0) {
        return -1;
    }
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == rc_on_bus_error) {
        return 0;
    }
    rc_before = now;
    mine.sa_sigaction = rc_on_bus_error;
    mine.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&mine.sa_mask);
    return sigaction(SIGBUS, &mine, NULL);
}

#endif
