/* Loads a kernel's library and calls it whenever a byte comes, on arrays in files that it inherits.
 *
 * call_kernel LIBRARY COMMANDS REPLIES {FILE BYTES START IS_INPUT}...: descriptors of two pipes, then for each array
 * its descriptor, the bytes of the file, and where the array begins in it. ARGUMENTS, which is filled in for each
 * problem, are those of the call; the problem's header declares the kernel. Each array is mapped between pages that
 * cannot be accessed.
 */

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EDGE = 1 << 20, NOT_LOADED = 98, CRASHED = 128 };

/* An emulator may be unable to end itself by a signal, so a crash is told by the status. */
static void end_after_crash(int signal)
{
    _exit(CRASHED + signal);
}

static void watch_crashes(void)
{
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = end_after_crash, .sa_flags = SA_ONSTACK};
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    sigaltstack(&other, NULL);
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
        sigaction(signals[i], &action, NULL);
}

static void *map_guarded(int file, size_t bytes, size_t start, int is_input)
{
    char *region = mmap(NULL, bytes + 2 * EDGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int rights = is_input ? PROT_READ : PROT_READ | PROT_WRITE;
    if (region == MAP_FAILED)
        return NULL;
    if (mmap(region + EDGE, bytes, rights, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        return NULL;
    close(file);
    return region + EDGE + start;
}

int main(int argc, char **argv)
{
    int commands = atoi(argv[2]), replies = atoi(argv[3]), count = (argc - 4) / 4;
    void *arrays[count ? count : 1];
    char command;
    watch_crashes();
    for (int i = 0; i < count; i++) {
        char **told = argv + 4 + 4 * i;
        arrays[i] = map_guarded(atoi(told[0]), atol(told[1]), atol(told[2]), atoi(told[3]));
        if (!arrays[i])
            return NOT_LOADED;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    __typeof__(&kernel) entry = library ? (__typeof__(&kernel))dlsym(library, "kernel") : NULL;
    if (!entry)
        return NOT_LOADED;
    while (read(commands, &command, 1) == 1) {
        entry(ARGUMENTS);
        if (write(replies, &command, 1) != 1)
            break;
    }
    return 0;
}
