"""Whether a candidate path of a diffusion video model computes what its reference does: where, why and since when not.

From the top: `cli` and `commands` (command line), `pytest_plugin`; `causes`, `bisect` and `report`; `runs` (run,
record, replay, sweep); `paths` (the sides) beside `compare` (the verdict); `models`; `hooks`; `golden`; `settings`. A
room imports only what is below it (`tests/test_layers.py`), and importing `parity` itself imports none of them.
"""
