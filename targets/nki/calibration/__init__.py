"""Calibration of a device: which kernels are timed on it, and what their times say about the model.

Open `calibrator.py` first; `agentctl calibrate` uses it.
"""
