"""Observation: a model's inputs, outputs and operations become records, under torch and JAX, and stay as they are.

May import golden and settings.
"""
