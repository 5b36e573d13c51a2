// a flag that writes
// verdicts: lint_error
// flags: -O2 -fdump-tree-all

void kernel(const float *restrict x, float *restrict out)
{
    for (int i = 0; i < M * N; i++)
        out[i] = 2 * x[i] + 1;
}
