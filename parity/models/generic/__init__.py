"""Any diffusers transformer by class and config alone, for a class that no other family runs."""

from parity.models.registry import ANY, Registered, register

register(
    Registered(
        title="a diffusers transformer by class and config",
        transformer=ANY,
        family="parity.models.generic.family:Generic.of",
    )
)
