"""What Holdfast costs a job to which nothing happens, beside torchrun."""
