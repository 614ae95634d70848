"""Status of a job for people and programs: the status subresource, new at every plan. Pure."""
