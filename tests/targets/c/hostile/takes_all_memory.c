// takes all memory
// verdicts: correct, runtime_error
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < 64; i++) { char *p = malloc(1ul << 30); if (p) memset(p, 1, 1 << 20); }
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
