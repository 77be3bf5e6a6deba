"""What records show of a cause by themselves: values, relations, phantom keys, frames. numpy only."""
