"""Data flow: which write reaches which read, slices, provenance, dead instructions."""
