"""Known faults of ports, simulated in a model of torch's by what its own code calls; see the modules."""
