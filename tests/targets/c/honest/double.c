// double
// verdicts: correct
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) out[i] = (float)(2.0 * x[i] + 1.0);
}
