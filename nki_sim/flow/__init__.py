"""Which write reaches which read: slices, provenance, dead instructions."""
