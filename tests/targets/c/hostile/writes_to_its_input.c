// writes to its input
// verdicts: runtime_error
void kernel(const float *restrict x, float *restrict out)
{
((float *)x)[0] = 1;
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
