"""The program: a traced kernel as versioned, validated data."""
