// executes data
// verdicts: runtime_error
void kernel(const float *restrict x, float *restrict out)
{
unsigned char code[1] = {0xc3}; ((void (*)(void))code)();
}
