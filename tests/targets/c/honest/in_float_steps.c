// in float steps
// verdicts: correct
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) { float y = x[i] + x[i]; out[i] = y + 1; }
}
