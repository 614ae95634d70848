"""Health of the running world: what agents sampled, and what follows from the verdicts.

Belongs here: taking samples and evidence, asking the policies, events and actions. Does not belong
here: the verdicts themselves (`policies.straggler`, `policies.hang`).
"""
