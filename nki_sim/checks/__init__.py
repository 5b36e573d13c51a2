"""Rules over whole programs, and what the run has to prove."""
