/* Processes that run on a device, and the driver's account of those that ran. */
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A zombie has no executable any more, as the driver has taken its memory back; others' links are forbidden. */
static int alive(unsigned pid)
{
    char path[32], target[1];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    return readlink(path, target, sizeof target) >= 0 || errno == EACCES;
}

/* On the whole GPU all its processes are seen, on a slice only its own; the dead are not listed. */
static int counts(const struct process *process, const struct target *at)
{
    int here = process->gpu == at->index && (!at->slice || process->slice == at->slice_index);
    return here && (process->ghost || alive(process->pid));
}

/* One process can be listed as compute, graphics and mps at once, and has its memory only once. */
static int listed_before(int index)
{
    for (int i = 0; i < index; i++)
        if (machine.processes[i].gpu == machine.processes[index].gpu &&
            machine.processes[i].pid == machine.processes[index].pid)
            return 1;
    return 0;
}

uint64_t held_by_processes(const struct target *at)
{
    uint64_t sum = 0;
    for (int i = 0; i < machine.process_count; i++) {
        const struct process *process = &machine.processes[i];
        if (counts(process, at) && process->bytes != NOT_AVAILABLE && !listed_before(i))
            sum += process->bytes;
    }
    return sum;
}

struct process_v1 { unsigned pid; uint64_t bytes; };
struct process_v2 { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; };

static void put_process(void *answers, unsigned index, int version, const struct process *process)
{
    unsigned instance = process->slice < 0 ? NO_INSTANCE : (unsigned)process->slice + 1;
    unsigned compute = process->slice < 0 ? NO_INSTANCE : 0;
    if (version == 1)
        ((struct process_v1 *)answers)[index] = (struct process_v1){process->pid, process->bytes};
    else
        ((struct process_v2 *)answers)[index] = (struct process_v2){process->pid, process->bytes, instance, compute};
}

/* Too small an array is not filled at all; the caller learns how large it must be. */
static int list_processes(const struct target *at, const char *kind, int version, unsigned *count, void *answers)
{
    unsigned room = answers ? *count : 0, found = 0;
    for (int i = 0; i < machine.process_count; i++) {
        const struct process *process = &machine.processes[i];
        if (strcmp(process->kind, kind) || !counts(process, at))
            continue;
        if (found < room)
            put_process(answers, found, version, process);
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESS_LIST(symbol, kind, version) \
    EXPORT int symbol(void *device, unsigned *count, void *answers) \
    { RESOLVE(device); return list_processes(&at, kind, version, count, answers); }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, "compute", 1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, "graphics", 1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, "mps", 1)
#ifndef OLD_LIBRARY
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, "compute", 2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", 2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", 2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute", 3)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", 3)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", 3)
#endif

/* The driver has no samples for a process that did nothing lately, and none at all under MIG. */
EXPORT int nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned *count, uint64_t since)
{
    RESOLVE(device);
    (void)samples, (void)since;
    *count = 0;
    return at.gpu->mig ? NOT_SUPPORTED : NOT_FOUND;
}

/* ---- accounting: the peak of a process, also after its end ---- */

struct accounting_stats {
    unsigned utilisation, memory_utilisation;
    uint64_t peak, milliseconds, started;
    unsigned running, unused[5];
};

static int accounting_on(const struct target *at)
{
    for (int i = 0; i < machine.account_count; i++)
        if (machine.accounts[i].gpu == at->index)
            return 1;
    return 0;
}

NUMBER(nvmlDeviceGetAccountingMode, (unsigned)accounting_on(&at))
NUMBER(nvmlDeviceGetAccountingBufferSize, BUFFER_SIZE)
RETURNS(nvmlDeviceSetAccountingMode, NO_PERMISSION)
RETURNS(nvmlDeviceClearAccountingPids, NO_PERMISSION)

EXPORT int nvmlDeviceGetAccountingPids(void *device, unsigned *count, unsigned *pids)
{
    RESOLVE(device);
    unsigned room = pids ? *count : 0, found = 0;
    for (int i = 0; i < machine.account_count; i++) {
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
    for (int i = machine.account_count - 1; i >= 0; i--) {
        const struct account *found = &machine.accounts[i];
        if (found->gpu != at.index || found->pid != pid)
            continue;
        *stats = (struct accounting_stats){found->utilisation, found->memory, found->peak, found->milliseconds,
                                           found->started, (unsigned)alive(pid), {0}};
        return SUCCESS;
    }
    return accounting_on(&at) ? NOT_FOUND : NOT_SUPPORTED;
}
