// a plug-in
// verdicts: lint_error
// flags: -fplugin=/tmp/x.so

void kernel(const float *restrict x, float *restrict out)
{
    for (int i = 0; i < M * N; i++)
        out[i] = 2 * x[i] + 1;
}
