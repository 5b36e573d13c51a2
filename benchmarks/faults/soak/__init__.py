"""A week of the daemon in virtual time: the week, its gauges, what counts as growth, the picture."""
