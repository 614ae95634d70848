"""Local SGD by EDiT (arXiv 2412.07210): replicas step alone and agree on their weights in rounds.

Belongs here: settings, decisions (`policies`), the engine on torch (`sync`), and the hooks of DDP
and of other frameworks. Does not belong here: who is a member of the job, which its master decides.
No module imports torch before it is used.
"""
