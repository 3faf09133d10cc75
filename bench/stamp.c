/* A job that takes SECONDS and adds "SLOT START END" to FILE: two reads of the clock and one write.
   A C program, linked statically, since whatever it needs to start is counted as gap. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int count, char **words) {
    double start = now();
    char line[128];
    if (count != 4)
        return 2;
    usleep((useconds_t)(atof(words[1]) * 1e6));
    int file = open(words[2], O_WRONLY | O_CREAT | O_APPEND, 0666);
    int length = snprintf(line, sizeof line, "%.20s %.6f %.6f\n", words[3], start, now());
    return file < 0 || write(file, line, length) != length;
}
