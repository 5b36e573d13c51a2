// exits at once
// verdicts: runtime_error
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

void kernel(const float *restrict x, float *restrict out)
{
_exit(0);
}
