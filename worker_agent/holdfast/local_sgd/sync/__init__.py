"""Engine of local SGD on torch: groups, reducers, codecs, outer optimizers, the sync of units.

Belongs here: what works on lists of local tensors. Does not belong here: the hooks of a framework
that call it, and decisions (`holdfast.local_sgd.policies`).
"""
