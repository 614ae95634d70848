"""`holdfast convert`: jobs of other operators, written as ElasticJobs."""
