"""Status of a job for people and programs: the status subresource, new at every plan.

Pure. `report` makes the object, `conditions` its conditions. Does not belong here: writing it.
"""
