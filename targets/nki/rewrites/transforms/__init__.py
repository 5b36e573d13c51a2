"""The transformations, one file each. What one is: `../transform.py`; the registry is in `catalogue.py`."""
