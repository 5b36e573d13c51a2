// static buffer
// verdicts: correct
static float row[N];
void kernel(const float *restrict x, float *restrict out)
{
for (int m = 0; m < M; m++) {
  for (int n = 0; n < N; n++) row[n] = 2 * x[m * N + n] + 1;
  memcpy(out + m * N, row, sizeof row);
}
}
