/* The library itself, its devices and their sensors. */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- the library and the machine ---- */

static int initialise(const char *symbol)
{
    load();
    if (machine.init)
        return machine.init;
    initialised++;
    int code = trouble(symbol, -1);
    initialised -= code != SUCCESS;
    return code;
}

EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return initialise(__func__); }
EXPORT int nvmlInit_v2(void) { return initialise(__func__); }
EXPORT int nvmlInit(void) { return initialise(__func__); }

EXPORT int nvmlShutdown(void)
{
    if (!initialised)
        return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
    static const char *const texts[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
                                        "Insufficient Permissions"};
    return code >= 0 && code <= NO_PERMISSION ? texts[code] : "Unknown Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    RETURN_TROUBLE(-1);
    return copy(text, size, machine.driver);
}

EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    RETURN_TROUBLE(-1);
    return copy(text, size, "12.550.54.15");
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    RETURN_TROUBLE(-1);
    *version = machine.cuda;
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    RETURN_TROUBLE(-1);
    *version = machine.cuda;
    return SUCCESS;
}

/* ---- finding and naming devices ---- */

static int count_gpus(const char *symbol, unsigned *count)
{
    int code = trouble(symbol, -1);
    *count = (unsigned)machine.gpu_count;
    return code;
}

EXPORT int nvmlDeviceGetCount(unsigned *count) { return count_gpus(__func__, count); }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return count_gpus(__func__, count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    RETURN_TROUBLE((int)index);
    *device = handle((int)index, -1);
    return index < (unsigned)machine.gpu_count ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    RETURN_TROUBLE(-1);
    for (int i = 0; i < machine.gpu_count; i++) {
        if (!strcmp(machine.gpus[i].uuid, uuid))
            return *device = handle(i, -1), SUCCESS;
        for (int j = 0; j < (int)machine.gpus[i].slice_count; j++)
            if (!strcmp(machine.gpus[i].slices[j].uuid, uuid))
                return *device = handle(i, j), SUCCESS;
    }
    return NOT_FOUND;
}

static void bus_text(const struct gpu *gpu, char *text, size_t size, int domain_digits)
{
    snprintf(text, size, "%0*x:%02X:00.0", domain_digits, 0, gpu->bus & 0xFF);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    char text[32];
    RETURN_TROUBLE(-1);
    for (int i = 0; i < machine.gpu_count; i++) {
        bus_text(&machine.gpus[i], text, sizeof text, 8);
        if (!strcasecmp(text, bus))
            return *device = handle(i, -1), SUCCESS;
    }
    return NOT_FOUND;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    RESOLVE(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = at.gpu->bus;
    pci->id = 0x20B010DE;
    bus_text(at.gpu, pci->legacy, sizeof pci->legacy, 4);
    bus_text(at.gpu, pci->text, sizeof pci->text, 8);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned size)
{
    RESOLVE(device);
    return copy(text, size, at.slice ? at.slice->name : at.gpu->name);
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned size)
{
    RESOLVE(device);
    return copy(text, size, at.slice ? at.slice->uuid : at.gpu->uuid);
}

NUMBER(nvmlDeviceGetIndex, (unsigned)(at.slice ? at.slice_index : at.index))
NUMBER(nvmlDeviceGetMinorNumber, (unsigned)at.index)

/* ---- memory, load, board ---- */

struct memory { uint64_t total, reserved, used; };

static struct memory memory_of(const struct target *at)
{
    uint64_t held = held_by_processes(at);
    if (at->slice)
        return (struct memory){at->slice->total, 0, at->slice->base + held};
    return (struct memory){at->gpu->total, at->gpu->reserved, at->gpu->base + held};
}

struct memory_v1 { uint64_t total, free, used; };

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory_v1 *answer)
{
    RESOLVE(device);
    struct memory memory = memory_of(&at);
    uint64_t used = memory.used + memory.reserved;
    *answer = (struct memory_v1){memory.total, memory.total - used, used};
    return SUCCESS;
}

#ifndef OLD_LIBRARY
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *answer)
{
    RESOLVE(device);
    if (answer->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    struct memory memory = memory_of(&at);
    uint64_t left = memory.total - memory.reserved - memory.used;
    *answer = (struct memory_v2){MEMORY_V2, memory.total, memory.reserved, left, memory.used};
    return SUCCESS;
}

struct temperature { unsigned version; int sensor, celsius; };

EXPORT int nvmlDeviceGetTemperatureV(void *device, struct temperature *answer)
{
    RESOLVE(device);
    if (answer->version != TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    if (at.slice)
        return NOT_SUPPORTED;
    answer->celsius = (int)at.gpu->celsius;
    return SUCCESS;
}
#endif

EXPORT int nvmlDeviceGetBAR1MemoryInfo(void *device, struct memory_v1 *answer)
{
    RESOLVE(device);
    *answer = (struct memory_v1){1ull << 28, (1ull << 28) - (1ull << 21), 1ull << 21};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2])
{
    RESOLVE(device);
    if (at.gpu->mig)
        return NOT_SUPPORTED;
    rates[0] = at.gpu->utilisation;
    rates[1] = at.gpu->memory_utilisation;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    RESOLVE(device);
    (void)sensor;
    *celsius = at.gpu->celsius;
    return at.slice ? NOT_SUPPORTED : SUCCESS;
}

WHOLE_GPU_NUMBER(nvmlDeviceGetPowerUsage, at.gpu->power)
WHOLE_GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, at.gpu->limit)
WHOLE_GPU_NUMBER(nvmlDeviceGetPowerManagementLimit, at.gpu->limit)
TWO_NUMBERS(nvmlDeviceGetEncoderUtilization, 0, 166666)
TWO_NUMBERS(nvmlDeviceGetDecoderUtilization, 0, 166666)
RETURNS(nvmlDeviceGetFanSpeed, NOT_SUPPORTED) /* as on every passively cooled card */
NUMBER(nvmlDeviceGetComputeMode, 0)
RETURNS(nvmlDeviceSetComputeMode, NO_PERMISSION)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetPerformanceState, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetDisplayMode, 0)
RETURNS(nvmlDeviceGetDriverModel_v2, NOT_SUPPORTED)
TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, 8, 0)
NUMBER_OF_KIND(nvmlDeviceGetClockInfo, 1410)
NUMBER_OF_KIND(nvmlDeviceGetMaxClockInfo, 1410)
NUMBER_OF_KIND(nvmlDeviceGetApplicationsClock, 1410)
RETURNS(nvmlDeviceSetApplicationsClocks, NO_PERMISSION)
RETURNS(nvmlDeviceResetApplicationsClocks, NO_PERMISSION)
NUMBER_OF_KIND(nvmlDeviceGetPcieThroughput, 0)
NUMBER_OF_KIND(nvmlDeviceGetTemperatureThreshold, 92)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)

/* One clock of each kind can be chosen. */
static int one_clock(unsigned megahertz, unsigned *count, unsigned *clocks)
{
    unsigned room = clocks ? *count : 0;
    *count = 1;
    if (!room)
        return INSUFFICIENT_SIZE;
    *clocks = megahertz;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *clocks)
{
    RESOLVE(device);
    return one_clock(1215, count, clocks);
}

EXPORT int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory, unsigned *count, unsigned *clocks)
{
    RESOLVE(device);
    (void)memory;
    return one_clock(1410, count, clocks);
}

/* ---- health ---- */

TWO_NUMBERS(nvmlDeviceGetEccMode, 1, 1)

EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, uint64_t *number)
{
    RESOLVE(device);
    (void)kind, (void)counter;
    *number = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failed)
{
    RESOLVE(device);
    *corrected = *uncorrected = *pending = *failed = 0;
    return SUCCESS;
}

/* ---- events: none ever comes ---- */

EXPORT int nvmlEventSetCreate(void **set) { RETURN_TROUBLE(-1); *set = &initialised; return SUCCESS; }
EXPORT int nvmlEventSetFree(void *set) { RETURN_TROUBLE(-1); (void)set; return SUCCESS; }
RETURNS(nvmlDeviceRegisterEvents, SUCCESS)

EXPORT int nvmlDeviceGetSupportedEventTypes(void *device, uint64_t *mask)
{
    enum { XID_CRITICAL_ERROR = 8 };
    RESOLVE(device);
    *mask = XID_CRITICAL_ERROR;
    return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, void *event, unsigned milliseconds)
{
    struct timespec wait = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    RETURN_TROUBLE(-1);
    (void)set, (void)event;
    nanosleep(&wait, NULL);
    return TIMEOUT;
}
