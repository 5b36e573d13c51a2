// a missing function
// verdicts: runtime_error
void missing(float *);
void kernel(const float *restrict x, float *restrict out)
{
missing(out);
}
