// stack overflow
// verdicts: compile_error, runtime_error
#pragma GCC optimize("O0")
static float deep(int n) { volatile char room[4096]; room[0] = n; return deep(n + 1) + room[0]; }
void kernel(const float *restrict x, float *restrict out)
{
out[0] = deep(1);
}
