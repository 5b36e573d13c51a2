// no kernel
// verdicts: lint_error
int main(void) { return 0; }
