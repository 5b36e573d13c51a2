"""Stands in for the vendor's package of this name."""
