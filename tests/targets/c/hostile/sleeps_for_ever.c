// sleeps for ever
// verdicts: runtime_error, timeout
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

void kernel(const float *restrict x, float *restrict out)
{
for (;;) pause();
}
