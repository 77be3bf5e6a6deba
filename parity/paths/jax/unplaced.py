"""The devices of a port that places its arrays itself.

Problem. A port for several chips makes a mesh of its own, splits its weights over it and names it in its calls. Inputs
that parity binds to a device meet weights on eight of them, and JAX refuses to compile the call.

How. What a port has placed stays where it is. What it is called with is bound to no device: JAX puts that wherever the
rest of the program is. A port that takes `mesh` is placed by that setting, as parity's own candidate is.

Cost. What one step leaves on the port's devices goes over the host before the next: the latents of a video.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from parity.paths.jax.mesh import Devices, make_devices
from parity.settings import Settings


class UnplacedDevices(Devices):
    """One device by the settings, and whatever others the port takes; see the module's docstring."""

    def put(self, x: jax.Array, sharding: NamedSharding) -> jax.Array:
        return jnp.asarray(np.asarray(x)) if x.committed else x

    def place(self, name: str, x: jax.Array) -> jax.Array:
        ours = {device.platform for device in x.devices()} == {self.platform}
        return x if ours else jnp.asarray(np.asarray(x))


def port_devices(settings: Settings) -> Devices:
    """The devices of a port.

    Raises:
        UsageError: a mesh that is larger than the devices there are.
    """
    devices = make_devices(settings)
    return devices if settings.changed("mesh") else UnplacedDevices(devices.mesh, devices.rules)
