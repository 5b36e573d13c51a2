// half precision
// verdicts: compile_error, incorrect
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) out[i] = (float)(_Float16)(2 * x[i] + 1);
}
