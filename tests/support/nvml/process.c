/* Processes that run on a device. */
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A zombie has no executable any more, as the driver has taken its memory back; others' links are forbidden. */
int alive(unsigned pid)
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

struct sample { unsigned pid; uint64_t microseconds; unsigned load, memory, encoder, decoder; };

/* The driver has no samples for a process that did nothing lately, and none at all under MIG. */
EXPORT int nvmlDeviceGetProcessUtilization(void *device, struct sample *samples, unsigned *count, uint64_t since)
{
    RESOLVE(device);
    if (at.gpu->mig)
        return NOT_SUPPORTED;
    unsigned room = samples ? *count : 0, found = 0;
    uint64_t now = (uint64_t)time(NULL) * 1000000;
    for (int i = 0; i < machine.process_count; i++) {
        const struct process *process = &machine.processes[i];
        if (!process->load || now <= since || !counts(process, &at))
            continue;
        if (found < room)
            samples[found] = (struct sample){process->pid, now, process->load, 0, 0, 0};
        found++;
    }
    *count = found;
    return !found ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
