// rows and columns
// verdicts: correct
void kernel(const float *restrict x, float *restrict out)
{
for (int m = 0; m < M; m++)
  for (int n = 0; n < N; n++)
    out[m * N + n] = 2 * x[m * N + n] + 1;
}
