// fma
// verdicts: correct
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) out[i] = fmaf(2, x[i], 1);
}
