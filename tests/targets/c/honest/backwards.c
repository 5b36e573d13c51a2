// backwards
// verdicts: correct
void kernel(const float *restrict x, float *restrict out)
{
for (int i = M * N - 1; i >= 0; i--) out[i] = 2 * x[i] + 1;
}
