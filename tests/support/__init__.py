"""Helpers that several rooms' tests share. Open `world.py` first."""
