// leaves out the last row
// verdicts: incorrect
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N - N; i++) out[i] = 2 * x[i] + 1;
}
