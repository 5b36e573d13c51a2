"""A traced kernel as versioned, validated data."""
