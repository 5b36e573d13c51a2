// endless loop
// verdicts: timeout
void kernel(const float *restrict x, float *restrict out)
{
for (volatile int i = 0;; i++);
}
