"""The load benchmark: thousands of agents' real streams against one master, beside DLRover's."""
