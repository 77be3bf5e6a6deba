"""What the JSON documents hold: their types, from which the schemas beside them are made (`make schemas`).

The functions that write a document return these types, so mypy holds both together; a test holds the schemas to the
types, and the documents of the commands to the schemas.
"""
