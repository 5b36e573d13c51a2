// a handler for its own faults
// verdicts: runtime_error
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
#include <signal.h>
void kernel(const float *restrict x, float *restrict out)
{
signal(SIGSEGV, SIG_IGN); ((float *)x)[0] = 1;
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
