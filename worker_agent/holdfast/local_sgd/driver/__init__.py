"""The course of local SGD on one rank: steps, rounds, and what frameworks have in common."""
