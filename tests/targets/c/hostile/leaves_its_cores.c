// leaves its cores
// verdicts: compile_error, correct
#define _GNU_SOURCE
#include <sched.h>
void kernel(const float *restrict x, float *restrict out)
{
cpu_set_t s; CPU_ZERO(&s); CPU_SET(0, &s); sched_setaffinity(0, sizeof s, &s);
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
