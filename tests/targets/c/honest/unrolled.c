// unrolled
// verdicts: correct
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i += 4) {
  out[i + 0] = 2 * x[i + 0] + 1;
  out[i + 1] = 2 * x[i + 1] + 1;
  out[i + 2] = 2 * x[i + 2] + 1;
  out[i + 3] = 2 * x[i + 3] + 1;
}
}
