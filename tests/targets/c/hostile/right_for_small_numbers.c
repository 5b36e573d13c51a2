// right for small numbers
// verdicts: incorrect
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) out[i] = fabsf(x[i]) < 8 ? 2 * x[i] + 1 : 0;
}
