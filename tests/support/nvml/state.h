/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1: the driver's answers come from a file.
 *
 * The file named by FAKE_NVML_STATE is read anew at every call. One record per line, words separated
 * by blanks; GPU is an index in order of the `gpu` lines; sizes are bytes; a NAME runs to the end of the line.
 *
 *   driver VERSION                         550.54.15 unless told
 *   cuda NUMBER                            12040 is 12.4
 *   init CODE                              what every nvmlInit returns
 *   gpu UUID NAME                          adds a GPU
 *   memory GPU TOTAL RESERVED BASE         BASE is in use though no process owns it
 *   load GPU UTILISATION MEMORY            per cent
 *   board GPU CELSIUS POWER LIMIT BUS      milliwatts; PCI bus number
 *   mig GPU                                MIG mode is on
 *   slice GPU UUID TOTAL BASE NAME         adds a MIG slice
 *   process GPU PID BYTES KIND SLICE LOAD  BYTES may be `na`, KIND compute, graphics or mps, SLICE -1 for none, LOAD
 *                                          per cent or left out; a later line for the same GPU, PID and KIND replaces
 *                                          an earlier one, but the largest BYTES stay in the account of the process
 *   ghost GPU PID BYTES KIND SLICE LOAD    the same, but shown although no such process lives
 *   accounting GPU SIZE                    accounting is on, with a buffer for so many processes
 *   account GPU PID PEAK UTILISATION MEMORY MILLISECONDS STARTED
 *                                          what is kept of a process without a line of its own
 *   link GPU GPU LEVEL NVLINK              LEVEL as in nvmlGpuTopologyLevel_t, NVLINK 0 or 1
 *   fail SYMBOL GPU CODE                   SYMBOL may be `*`, GPU -1 is all: what the call returns instead
 *   block SYMBOL SECONDS                   the call hangs so long, or until the line is gone
 *
 * Every line but `gpu` and `slice` can be appended by a single write, so a shell job can report its own memory.
 * Built with -DOLD_LIBRARY, the symbols that appeared after driver 450 are missing.
 */
#ifndef STATE_H
#define STATE_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define NOT_AVAILABLE UINT64_MAX
#define NO_INSTANCE UINT32_MAX
#define MEMORY_V2 0x02000028u
#define TEMPERATURE_V1 0x0100000Cu

enum {
    SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, ARGUMENT_VERSION_MISMATCH = 25
};
enum { GPUS = 16, SLICES = 8, ENTRIES = 256, ACCOUNTS = 8192, SYSTEM_LEVEL = 50 };

struct slice { char uuid[96], name[96]; uint64_t total, base; };
struct gpu {
    char uuid[96], name[96];
    uint64_t total, reserved, base;
    unsigned utilisation, memory_utilisation, celsius, power, limit, bus, mig, accounting, slice_count;
    struct slice slices[SLICES];
};
struct process { int gpu, slice, ghost; unsigned pid, load; uint64_t bytes; char kind[16]; };
struct account { int gpu, of_process; unsigned pid, utilisation, memory; uint64_t peak, milliseconds, started; };
struct link { int from, to, level, nvlink; };
struct fault { char symbol[64]; int gpu, code; double seconds; };

extern __thread struct machine {
    char driver[80];
    int cuda, init, gpu_count, process_count, account_count, link_count, fault_count;
    struct gpu gpus[GPUS];
    struct process processes[ENTRIES];
    struct account accounts[ACCOUNTS];
    struct link links[ENTRIES];
    struct fault faults[ENTRIES];
} machine;

extern int initialised;

/* A handle is a number, so that it outlives the next reading of the file: 1 + 16 * GPU + (1 + slice, or 0). */
struct target { struct gpu *gpu; struct slice *slice; int index, slice_index; };

void *handle(int gpu, int slice);
int index_of(const void *device);
void load(void);
int trouble(const char *symbol, int gpu);
int resolve(const char *symbol, void *device, struct target *at);
int copy(char *to, unsigned size, const char *text);
uint64_t held_by_processes(const struct target *at);
int alive(unsigned pid);

/* The first lines of nearly every symbol: its faults, and what its handle stands for, as `at`. */
#define RETURN_TROUBLE(gpu) do { int code = trouble(__func__, gpu); if (code) return code; } while (0)
#define RESOLVE(device) \
    struct target at; \
    do { int code = resolve(__func__, device, &at); if (code) return code; } while (0)
#define NUMBER(symbol, value) \
    EXPORT int symbol(void *device, unsigned *number) { RESOLVE(device); *number = (value); return SUCCESS; }
#define WHOLE_GPU_NUMBER(symbol, value) \
    EXPORT int symbol(void *device, unsigned *number) \
    { RESOLVE(device); if (at.slice) return NOT_SUPPORTED; *number = (value); return SUCCESS; }
#define NUMBER_OF_KIND(symbol, value) \
    EXPORT int symbol(void *device, unsigned kind, unsigned *number) \
    { RESOLVE(device); (void)kind; *number = (value); return SUCCESS; }
#define TWO_NUMBERS(symbol, first, second) \
    EXPORT int symbol(void *device, unsigned *one, unsigned *two) \
    { RESOLVE(device); *one = (first); *two = (second); return SUCCESS; }
#define RETURNS(symbol, code) EXPORT int symbol(void *device) { RESOLVE(device); return code; }

#endif
