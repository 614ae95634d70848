"""The job master: one per job, decides who trains, when a world ends and why.

Decisions are pure functions in `policies`; the shell around them owns clocks, streams and the
journal. Nothing here touches Kubernetes, training data or torch.
"""
