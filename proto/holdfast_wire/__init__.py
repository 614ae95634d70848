"""The wire: messages, their frozen twins, the names of labels, variables and reasons.

What two parts must agree on stands here and nowhere else. Nothing of any other part is imported.
"""
