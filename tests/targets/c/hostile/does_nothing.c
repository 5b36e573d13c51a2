// does nothing
// verdicts: incorrect
void kernel(const float *restrict x, float *restrict out)
{

}
