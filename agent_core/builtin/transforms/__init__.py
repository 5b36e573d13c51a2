"""The transformations, one file each. Open `base.py` for what one is; the registry is in `catalogue.py`."""
