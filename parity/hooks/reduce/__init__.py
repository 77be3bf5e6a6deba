"""From a tensor to a record: sketches and moments where the tensor lies, then what reaches the host."""
