// includes a secret
// verdicts: compile_error
#include "/etc/shadow"

void kernel(const float *restrict x, float *restrict out)
{
    for (int i = 0; i < M * N; i++)
        out[i] = 2 * x[i] + 1;
}
