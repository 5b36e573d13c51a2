"""Stands in for the vendor's module of this name: kernels import it, and nothing here calls them."""
