"""What records show of a cause by themselves: glue, phantom keys, frames, the shape of an error. Numpy only."""
