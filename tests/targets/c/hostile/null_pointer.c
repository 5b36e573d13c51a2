// null pointer
// verdicts: runtime_error
void kernel(const float *restrict x, float *restrict out)
{
*(volatile int *)0 = 1;
}
