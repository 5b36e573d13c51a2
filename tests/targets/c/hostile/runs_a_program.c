// runs a program
// verdicts: correct
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

void kernel(const float *restrict x, float *restrict out)
{
system("touch /tmp/harmed");
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
