// writes one element beyond
// verdicts: incorrect, runtime_error
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;
((volatile float *)out)[M * N] = 1;
}
