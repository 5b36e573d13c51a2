"""What runs on hosts that have NKI kernels: the devices, and the vendor's compiler in its jail.

It is shipped with the worker (`remote.hostside`) and keeps to its rules: modules import the standard library,
`remote.hostside` and each other, in Python 3.9. `neuron` is the vendor's device, `simulated` stands in for
it. Open `simulated.py` first; how home uses them is in `targets/nki/hosts/`.
"""
