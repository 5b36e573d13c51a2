// reads beyond its input
// verdicts: incorrect, runtime_error
void kernel(const float *restrict x, float *restrict out)
{
float y = x[M * N + 4096];
for (int i = 0; i < M * N; i++) out[i] = 2 * x[i] + 1 + 0 * y;
}
