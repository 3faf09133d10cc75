/* Preloaded into programs of the tests: makes a directory behave like one on a slow network file system, and kills a
 * program at one step of its work on that directory.
 *
 * SHARED_DIR        the directory; paths outside of it are untouched
 * SHARED_DELAY      seconds: a reader gets the content that a file had at its first look, for so long
 * SHARED_MISSING    seconds: a name that was missing stays missing, for so long, unless the program makes it itself
 * SHARED_KILL       "CALL PART ONCE": the program dies by SIGKILL before CALL (open, mkdir, rename, unlink, fsync) of a
 *                   path that contains PART, or after it where CALL has a "+", or, where CALL is read, when it opens a
 *                   file that has content; the file ONCE makes it the only one to die
 *
 * A program that Slurm started is never killed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ENTRIES 4096
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

struct entry {
    char *path;
    double missing_at;
    double read_at;
    int copy; /* what readers get; -1 where there is none */
};

static struct entry entries[ENTRIES];
static int used;

static double now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + (double)moment.tv_nsec / 1e9;
}

static double seconds(const char *name) {
    const char *text = getenv(name);
    return text ? atof(text) : 0.0;
}

static int is_shared(const char *path) {
    const char *shared = getenv("SHARED_DIR");
    return shared && path && !strncmp(path, shared, strlen(shared));
}

static struct entry *find(const char *path) {
    for (int at = 0; at < used; at++)
        if (!strcmp(entries[at].path, path))
            return &entries[at];
    if (used == ENTRIES)
        return NULL;
    entries[used] = (struct entry){strdup(path), -1e9, -1e9, -1};
    return &entries[used++];
}

static void forget(const char *path) {
    struct entry *known = is_shared(path) ? find(path) : NULL;
    if (!known)
        return;
    if (known->copy >= 0)
        close(known->copy);
    known->copy = -1;
    known->missing_at = known->read_at = -1e9;
}

static int seems_missing(const char *path) {
    struct entry *known = is_shared(path) ? find(path) : NULL;
    return known && now() - known->missing_at < seconds("SHARED_MISSING");
}

static void note_missing(const char *path) {
    struct entry *known = is_shared(path) ? find(path) : NULL;
    if (known)
        known->missing_at = now();
}

static int copy_of(int file) {
    char data[65536];
    int copy = memfd_create("stale", MFD_CLOEXEC);
    for (ssize_t got; copy >= 0 && (got = read(file, data, sizeof data)) > 0;)
        if (write(copy, data, (size_t)got) != got)
            break;
    return copy;
}

/* A file of the content that the path had at the first look, as long as that is not too old. */
static int stale(const char *path, int file) {
    char link[64];
    struct entry *known = find(path);
    if (!known)
        return file;
    if (known->copy < 0 || now() - known->read_at >= seconds("SHARED_DELAY")) {
        if (known->copy >= 0)
            close(known->copy);
        known->copy = copy_of(file);
        known->read_at = now();
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", known->copy);
    close(file);
    return REAL(open)(link, O_RDONLY | O_CLOEXEC);
}

static void die_at(const char *call, const char *path) {
    char wanted[32], part[128], once[512];
    const char *text = getenv("SHARED_KILL");
    if (!text || !path || getenv("SLURM_JOB_ID") || sscanf(text, "%31s %127s %511s", wanted, part, once) != 3)
        return;
    if (strcmp(call, wanted) || !is_shared(path) || !strstr(path, part))
        return;
    int mark = REAL(open)(once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (mark >= 0)
        kill(getpid(), SIGKILL);
}

static int open_file(const char *path, int flags, mode_t mode) {
    struct stat found;
    if (!is_shared(path))
        return REAL(open)(path, flags, mode);
    die_at("open", path);
    if (flags & O_CREAT)
        forget(path);
    else if (seems_missing(path)) {
        errno = ENOENT;
        return -1;
    }
    int file = REAL(open)(path, flags, mode);
    if (file < 0 && errno == ENOENT)
        note_missing(path);
    if (file < 0)
        return file;
    if (flags & (O_WRONLY | O_RDWR)) {
        forget(path);
        return file;
    }
    if (fstat(file, &found) || !S_ISREG(found.st_mode))
        return file;
    if (found.st_size)
        die_at("read", path);
    return seconds("SHARED_DELAY") > 0 ? stale(path, file) : file;
}

#define OPEN(name)                                   \
    int name(const char *path, int flags, ...) {     \
        va_list rest;                                \
        va_start(rest, flags);                       \
        mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                \
        return open_file(path, flags, mode);         \
    }
OPEN(open)
OPEN(open64)

#define STAT(name, type)                                          \
    int name(const char *restrict path, struct type *restrict found) { \
        if (seems_missing(path)) {                                \
            errno = ENOENT;                                       \
            return -1;                                            \
        }                                                         \
        int result = REAL(name)(path, found);                     \
        if (result < 0 && errno == ENOENT)                        \
            note_missing(path);                                   \
        return result;                                            \
    }
STAT(stat, stat)
STAT(stat64, stat64)

int mkdir(const char *path, mode_t mode) {
    die_at("mkdir", path);
    int result = REAL(mkdir)(path, mode);
    forget(path);
    if (!result)
        die_at("mkdir+", path);
    return result;
}

int rename(const char *from, const char *to) {
    die_at("rename", to);
    int result = REAL(rename)(from, to);
    forget(from);
    forget(to);
    die_at("rename+", to);
    return result;
}

int unlink(const char *path) {
    die_at("unlink", path);
    int result = REAL(unlink)(path);
    forget(path);
    die_at("unlink+", path);
    return result;
}

int fsync(int file) {
    char link[64], path[1024];
    int result = REAL(fsync)(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        die_at("fsync+", path);
    }
    return result;
}
