"""The performance model: memory, dependences, schedule, counters."""
