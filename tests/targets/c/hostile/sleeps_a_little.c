// sleeps a little
// verdicts: correct
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

void kernel(const float *restrict x, float *restrict out)
{
usleep(1000);
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
