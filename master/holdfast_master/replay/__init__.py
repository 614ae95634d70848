"""Recording of the core's inputs, and deciding again from the record.

The journal of facts does not belong here.
"""
