"""Training processes of this node: rounds, their starts and ends, logs, evidence, stores.

The fork itself is the zygote's; the decision about a round is the master's.
"""
