"""What a person or a script reads of a result: terminal text, JSON, Markdown, JUnit XML, HTML; progress.

Reads result types (`compare.result`, `golden.records`) and computes nothing; neither torch nor jax.
"""
