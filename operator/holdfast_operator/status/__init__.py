"""What people and programs read of a job: the status subresource, made anew at every plan.

Pure. `report` makes the object, `conditions` its conditions. Who writes it is the shell's affair.
"""
