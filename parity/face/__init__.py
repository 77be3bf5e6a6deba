"""What `import parity` gives to a script: the verbs of the command line as functions, in the caller's own process.

May import everything below the commands; nothing of parity imports it but `parity` itself, when a name is asked for.
"""
