// wrong sign of negative numbers
// verdicts: incorrect
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) out[i] = 2 * fabsf(x[i]) + 1;
}
