/* How a GPU is divided into MIG slices, and how near GPUs are to each other. */
#include "state.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    RESOLVE(device);
    *current = *pending = at.gpu->mig;
    return at.gpu->mig ? SUCCESS : NOT_SUPPORTED;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, at.gpu->mig ? SLICES - 1 : 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, at.slice != NULL)

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice)
{
    RESOLVE(device);
    *slice = handle(at.index, (int)index);
    return index < at.gpu->slice_count ? SUCCESS : NOT_FOUND;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device)
{
    RESOLVE(slice);
    *device = handle(at.index, -1);
    return at.slice ? SUCCESS : INVALID_ARGUMENT;
}

static int instance(const struct target *at, unsigned value, unsigned *number)
{
    *number = value;
    return at->slice ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetGpuInstanceId(void *device, unsigned *number)
{
    RESOLVE(device);
    return instance(&at, (unsigned)at.slice_index + 1, number);
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *device, unsigned *number)
{
    RESOLVE(device);
    return instance(&at, 0, number);
}

struct attributes { unsigned multiprocessors, engines[5], gpu_slices, compute_slices; uint64_t mebibytes; };

EXPORT int nvmlDeviceGetAttributes_v2(void *device, struct attributes *answer)
{
    RESOLVE(device);
    if (!at.slice)
        return NOT_SUPPORTED;
    *answer = (struct attributes){14, {0}, 1, 1, at.slice->total >> 20};
    return SUCCESS;
}

/* ---- topology ---- */

static const struct link *link_between(int one, int other)
{
    for (int i = 0; i < machine.link_count; i++) {
        const struct link *link = &machine.links[i];
        if ((link->from == one && link->to == other) || (link->from == other && link->to == one))
            return link;
    }
    return NULL;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, int *level)
{
    RESOLVE(device);
    const struct link *link = link_between(at.index, index_of(other));
    *level = link ? link->level : SYSTEM_LEVEL;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetP2PStatus(void *device, void *other, int capability, int *status)
{
    enum { NVLINK = 2, STATUS_OK = 0, STATUS_NOT_SUPPORTED = 5 };
    RESOLVE(device);
    const struct link *link = link_between(at.index, index_of(other));
    *status = capability == NVLINK && !(link && link->nvlink) ? STATUS_NOT_SUPPORTED : STATUS_OK;
    return SUCCESS;
}

RETURNS(nvmlDeviceGetNvLinkState, NOT_SUPPORTED)
RETURNS(nvmlDeviceGetNvLinkRemotePciInfo_v2, NOT_SUPPORTED)

/* All CPUs are near. */
EXPORT int nvmlDeviceGetCpuAffinity(void *device, unsigned size, unsigned long *set)
{
    enum { BITS = 8 * sizeof *set };
    RESOLVE(device);
    memset(set, 0, size * sizeof *set);
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_ONLN) && cpu < (long)size * BITS; cpu++)
        set[cpu / BITS] |= 1ul << cpu % BITS;
    return SUCCESS;
}
