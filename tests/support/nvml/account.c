/* Accounting: the peak of a process, also after its end, in a buffer that forgets the oldest ones. */
#include "state.h"

#include <stddef.h>

struct accounting_stats {
    unsigned utilisation, memory_utilisation;
    uint64_t peak, milliseconds, started;
    unsigned running, unused[5];
};

/* Not under MIG, and nothing is told while it is off. */
static int refusal(const struct target *at)
{
    return at->gpu->mig || !at->gpu->accounting ? NOT_SUPPORTED : SUCCESS;
}

/* The first record of a GPU that still fits into its buffer. */
static int oldest_record(const struct target *at)
{
    unsigned left = 0;
    for (int i = 0; i < machine.account_count; i++)
        left += machine.accounts[i].gpu == at->index;
    for (int i = 0; i < machine.account_count; i++)
        if (machine.accounts[i].gpu == at->index && left-- <= at->gpu->accounting)
            return i;
    return -1;
}

static int runs(unsigned pid)
{
    for (int i = 0; i < machine.process_count; i++)
        if (machine.processes[i].pid == pid && machine.processes[i].ghost)
            return 1;
    return alive(pid);
}

EXPORT int nvmlDeviceGetAccountingMode(void *device, unsigned *mode)
{
    RESOLVE(device);
    *mode = at.gpu->accounting != 0;
    return at.gpu->mig ? NOT_SUPPORTED : SUCCESS;
}

NUMBER(nvmlDeviceGetAccountingBufferSize, at.gpu->accounting)
RETURNS(nvmlDeviceSetAccountingMode, NO_PERMISSION)
RETURNS(nvmlDeviceClearAccountingPids, NO_PERMISSION)

EXPORT int nvmlDeviceGetAccountingPids(void *device, unsigned *count, unsigned *pids)
{
    RESOLVE(device);
    if (refusal(&at))
        return refusal(&at);
    unsigned room = pids ? *count : 0, found = 0;
    for (int i = oldest_record(&at); i >= 0 && i < machine.account_count; i++) {
        if (machine.accounts[i].gpu != at.index)
            continue;
        if (found < room)
            pids[found] = machine.accounts[i].pid;
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* The newest record wins, as a PID can come again. */
EXPORT int nvmlDeviceGetAccountingStats(void *device, unsigned pid, struct accounting_stats *stats)
{
    RESOLVE(device);
    if (refusal(&at))
        return refusal(&at);
    int oldest = oldest_record(&at);
    for (int i = machine.account_count - 1; oldest >= 0 && i >= oldest; i--) {
        const struct account *found = &machine.accounts[i];
        if (found->gpu != at.index || found->pid != pid)
            continue;
        *stats = (struct accounting_stats){found->utilisation, found->memory, found->peak, found->milliseconds,
                                           found->started, (unsigned)runs(pid), {0}};
        return SUCCESS;
    }
    return NOT_FOUND;
}
