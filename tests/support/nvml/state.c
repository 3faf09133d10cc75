/* Reads the state file, and decides what a call must return instead of an answer. */
#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__thread struct machine machine;
int initialised;

/* The account that goes with the lines of one process; the largest size counts. */
static void account_for(const struct process *process)
{
    struct account *new = &machine.accounts[machine.account_count];
    for (int i = 0; i < machine.account_count; i++) {
        struct account *old = &machine.accounts[i];
        if (old->of_process && old->gpu == process->gpu && old->pid == process->pid)
            new = old;
    }
    if (new == &machine.accounts[machine.account_count]) {
        if (machine.account_count == ACCOUNTS)
            return;
        *new = (struct account){.gpu = process->gpu, .of_process = 1, .pid = process->pid};
        machine.account_count++;
    }
    new->utilisation = process->load;
    if (process->bytes != NOT_AVAILABLE && process->bytes > new->peak)
        new->peak = process->bytes;
}

static void add_process(const char *line, int ghost)
{
    struct process new = {.ghost = ghost, .slice = -1};
    char bytes[32];
    if (machine.process_count == ENTRIES ||
        sscanf(line, "%d %u %31s %15s %d %u", &new.gpu, &new.pid, bytes, new.kind, &new.slice, &new.load) < 4)
        return;
    new.bytes = strcmp(bytes, "na") ? strtoull(bytes, NULL, 10) : NOT_AVAILABLE;
    account_for(&new);
    for (int i = 0; i < machine.process_count; i++) {
        struct process *old = &machine.processes[i];
        if (old->gpu == new.gpu && old->pid == new.pid && !strcmp(old->kind, new.kind)) {
            *old = new;
            return;
        }
    }
    machine.processes[machine.process_count++] = new;
}

static void add_slice(const char *line)
{
    int at = 0, index = -1;
    sscanf(line, "%d %n", &index, &at);
    if (index < 0 || index >= machine.gpu_count || machine.gpus[index].slice_count == SLICES)
        return;
    struct gpu *gpu = &machine.gpus[index];
    struct slice *slice = &gpu->slices[gpu->slice_count];
    if (sscanf(line + at, "%95s %lu %lu %95[^\n]", slice->uuid, &slice->total, &slice->base, slice->name) == 4)
        gpu->slice_count++;
}

/* The facts about one GPU that already has its `gpu` line. */
static void describe_gpu(const char *keyword, const char *line)
{
    int at = 0, index = -1;
    sscanf(line, "%d %n", &index, &at);
    if (index < 0 || index >= machine.gpu_count)
        return;
    struct gpu *gpu = &machine.gpus[index];
    line += at;
    if (!strcmp(keyword, "memory"))
        sscanf(line, "%lu %lu %lu", &gpu->total, &gpu->reserved, &gpu->base);
    else if (!strcmp(keyword, "load"))
        sscanf(line, "%u %u", &gpu->utilisation, &gpu->memory_utilisation);
    else if (!strcmp(keyword, "board"))
        sscanf(line, "%u %u %u %u", &gpu->celsius, &gpu->power, &gpu->limit, &gpu->bus);
    else if (!strcmp(keyword, "accounting"))
        sscanf(line, "%u", &gpu->accounting);
    else if (!strcmp(keyword, "mig"))
        gpu->mig = 1;
}

static void add_account(const char *line)
{
    struct account *new = &machine.accounts[machine.account_count];
    if (machine.account_count < ACCOUNTS &&
        sscanf(line, "%d %u %lu %u %u %lu %lu", &new->gpu, &new->pid, &new->peak, &new->utilisation, &new->memory,
               &new->milliseconds, &new->started) == 7)
        machine.account_count++;
}

static void add_link(const char *line)
{
    struct link *new = &machine.links[machine.link_count];
    if (machine.link_count < ENTRIES &&
        sscanf(line, "%d %d %d %d", &new->from, &new->to, &new->level, &new->nvlink) == 4)
        machine.link_count++;
}

static void add_fault(const char *line, int blocks)
{
    struct fault new = {.gpu = -1};
    int words = blocks ? sscanf(line, "%63s %lf", new.symbol, &new.seconds)
                       : sscanf(line, "%63s %d %d", new.symbol, &new.gpu, &new.code);
    if (machine.fault_count < ENTRIES && words == (blocks ? 2 : 3))
        machine.faults[machine.fault_count++] = new;
}

static void take(const char *keyword, const char *line)
{
    struct gpu *next = &machine.gpus[machine.gpu_count];
    if (!strcmp(keyword, "driver"))
        sscanf(line, "%79s", machine.driver);
    else if (!strcmp(keyword, "cuda"))
        sscanf(line, "%d", &machine.cuda);
    else if (!strcmp(keyword, "init"))
        sscanf(line, "%d", &machine.init);
    else if (!strcmp(keyword, "gpu"))
        machine.gpu_count += machine.gpu_count < GPUS && sscanf(line, "%95s %95[^\n]", next->uuid, next->name) == 2;
    else if (!strcmp(keyword, "slice"))
        add_slice(line);
    else if (!strcmp(keyword, "process") || !strcmp(keyword, "ghost"))
        add_process(line, *keyword == 'g');
    else if (!strcmp(keyword, "account"))
        add_account(line);
    else if (!strcmp(keyword, "link"))
        add_link(line);
    else if (!strcmp(keyword, "fail") || !strcmp(keyword, "block"))
        add_fault(line, *keyword == 'b');
    else
        describe_gpu(keyword, line);
}

void load(void)
{
    char line[512], keyword[16];
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    memset(&machine, 0, sizeof machine);
    strcpy(machine.driver, "550.54.15");
    machine.cuda = 12040;
    while (file && fgets(line, sizeof line, file)) {
        int at = 0;
        if (sscanf(line, "%15s %n", keyword, &at) == 1)
            take(keyword, line + at);
    }
    if (file)
        fclose(file);
}

static const struct fault *fault(const char *symbol, int gpu, int blocks)
{
    for (int i = 0; i < machine.fault_count; i++) {
        const struct fault *found = &machine.faults[i];
        int same_symbol = !strcmp(found->symbol, symbol) || !strcmp(found->symbol, "*");
        if (same_symbol && (found->gpu < 0 || found->gpu == gpu) && (found->seconds > 0) == blocks)
            return found;
    }
    return NULL;
}

/* What the call must return instead of an answer; comes back late where the state says that it hangs. */
int trouble(const char *symbol, int gpu)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    const struct fault *found;
    double waited = 0;
    load();
    while ((found = fault(symbol, gpu, 1)) && waited < found->seconds) {
        nanosleep(&moment, NULL);
        waited += 0.01;
        load();
    }
    if (!initialised)
        return UNINITIALIZED;
    found = fault(symbol, gpu, 0);
    return found ? found->code : SUCCESS;
}

void *handle(int gpu, int slice) { return (void *)(uintptr_t)(1 + 16 * gpu + 1 + slice); }
int index_of(const void *device) { return (int)(((uintptr_t)device - 1) / 16); }

int resolve(const char *symbol, void *device, struct target *at)
{
    uintptr_t number = (uintptr_t)device - 1;
    int code = trouble(symbol, device ? (int)(number / 16) : -1);
    if (code)
        return code;
    at->index = (int)(number / 16);
    at->slice_index = (int)(number % 16) - 1;
    if (!device || number / 16 >= (uintptr_t)machine.gpu_count)
        return INVALID_ARGUMENT;
    at->gpu = &machine.gpus[at->index];
    at->slice = at->slice_index < 0 ? NULL : &at->gpu->slices[at->slice_index];
    return at->slice_index < (int)at->gpu->slice_count ? SUCCESS : INVALID_ARGUMENT;
}

int copy(char *to, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}
