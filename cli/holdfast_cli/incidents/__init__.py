"""Incidents of a job, for people: the list, one of them, and a file to pass on.

Belongs here: the commands `incidents` and `incident`. Does not belong here: the answers of a master
(`client`).
"""
