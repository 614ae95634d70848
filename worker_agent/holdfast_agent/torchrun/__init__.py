"""`torchrun --rdzv-backend=holdfast`: torch's rendezvous interface on a job master.

`holdfast-run` itself does not use it.
"""
