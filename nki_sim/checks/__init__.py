"""Rules over whole programs, and what only a run can prove."""
