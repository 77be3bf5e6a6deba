"""`parity init PORT.py`: writes a commented port, or a script to be recorded, that runs as it is, to be filled in.

With --model it holds what a port of that model needs to know: the transformer's class, its arguments with shapes and
dtypes, the names of its modules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.options import command, model_option
from parity.errors import UsageError
from parity.redact import typed_command
from parity.report.output import printable, show, write

TEMPLATES = Path(__file__).parent / "templates"
KINDS = ("torchax", "jax", "script")
MOST_NAMES = 60
"""Module names that are listed; a block's, once for all blocks."""


@command
def init(
    where: Annotated[Path, typer.Argument(metavar="PORT.py", help="File to write; never overwritten.")],
    torchax: Annotated[bool, typer.Option("--torchax", help="A torch module that torchax runs; the default.")] = False,
    jax: Annotated[bool, typer.Option("--jax", help="A function in JAX, with taps.")] = False,
    script: Annotated[bool, typer.Option("--script", help="A script with a loop of its own, recorded.")] = False,
    model: Annotated[
        str | None, model_option("Model that is ported: its class, arguments and module names are filled in.")
    ] = None,
) -> None:
    """Write a port template to fill in, or a script to be recorded.

    The port is for --port, and for --reference-port where the reference is your own code too.
    """
    given = dict(zip(KINDS, (torchax, jax, script), strict=True))
    chosen = [kind for kind, wanted in given.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} exclude each other")
    if where.suffix != ".py":
        raise UsageError(f"'{where}' is not the name of a Python file; name one as in my_port.py")
    kind = chosen[0] if chosen else "torchax"
    text, small = ((TEMPLATES / f"port_{of}.py").read_text(encoding="utf-8") for of in (kind, "torchax"))
    text = (text + small[small.index(REFERENCE) :] * (kind == "jax")).replace("THIS_FILE", str(where))
    if model is not None:
        text = f"{_of_class(text, model) if kind == 'torchax' else text}\n\n{_about(model)}"
    if os.path.lexists(where):
        raise UsageError(f"'{where}' exists; name another file")
    if not where.parent.is_dir():
        raise UsageError(f"cannot write '{where}': there is no folder '{where.parent}'")
    write(where, text, "PORT.py")
    shown = printable(str(where), "utf-8")
    first = ["--reference-port", f"{shown}:reference"] if model is None or kind != "torchax" else ["--model", model]
    port = ["--port", f"{shown}:build"]
    run = ["python", shown, "golden"] if kind == "script" else ["parity", "run", *first, *port]
    show(f"wrote {shown}; try: {typed_command(*run)}")
    if model is not None and kind == "jax":
        show(f"once your port is in it: {typed_command('parity', 'run', '--model', model, *port)}")


REFERENCE = "\n\nclass Block"
"""Where the small reference begins that the template of a torch port ends in; that of a JAX port has the same."""
TRACEABLE = {"HunyuanVideo15Transformer3DModel": ("parity.models.hunyuan_video_15", "traceable")}
"""Class of diffusers' that no compiler takes as it is -> module and function that change a model of it so that one
does."""
MODULE = 'Net().to(getattr(torch, case.settings["dtype"]))'
"""What makes the module of the template."""


def _of_class(text: str, model: str) -> str:
    """The template of a torch port with the model's own class in it."""
    from parity.models.folder import class_of, is_drawn, place_of
    from parity.models.registry import resolve_model

    folder = resolve_model(model)
    name = class_of(folder, "transformer").__name__
    recipe = TRACEABLE.get(name)
    where = "case.folder" if place_of(folder, "transformer") == folder else 'case.folder / "transformer"'
    # Given a dtype, a class keeps in float32 what it must.
    made, imported = f"{name}.from_pretrained({where}, torch_dtype=dtype)", f"from diffusers import {name}"
    if is_drawn(folder):  # there are no weights to load
        made = 'load_part(case.folder, "transformer", torch_dtype=dtype)'
        imported = "from parity.models.folder import load_part"
    loaded = f'    dtype = getattr(torch, case.settings["dtype"])\n    model = {made}\n'
    if recipe is not None:
        module, function = recipe
        loaded += "    # diffusers' forward asks values of tensors what to do, which no compiled program can.\n"
        loaded += f"    model = {function}(model)\n"
        text = text.replace("from parity.port", f"from {module} import {function}\nfrom parity.port", 1)
    text = text.replace("import torch\n", f"import torch\n{imported}\n", 1).replace(MODULE, "model")
    text = text.replace("    return Port(module=model", f"{loaded}    return Port(module=model", 1)
    return text[: text.index(REFERENCE)]  # its own small reference is not needed


def _about(model: str) -> str:
    """What is known of a model without its weights, as comments."""
    from parity.paths.worker.extras import require_extras

    require_extras()
    return "".join(printable(f"# {line}".rstrip(), "utf-8") + "\n" for line in described(model))


def described(model: str) -> Iterator[str]:
    """Lines about a model: its transformer's class, arguments and modules.

    Raises:
        UsageError: no such model, or one without a transformer.
    """
    from parity.hooks.torchtools import callable_modules
    from parity.models.folder import class_of, skeleton
    from parity.models.generic_inputs import make_arguments, signature_of
    from parity.models.registry import opened

    family, case = opened(model)
    kind, config, skeletal = class_of(case.folder, "transformer"), case.config, skeleton(case.folder, "transformer")
    signature, latents = signature_of(kind, config, skeletal), list(case.latent_shape)
    shapes = {
        "hidden_states": f"{latents}: the latents; more channels where the pipeline joins a condition to them",
        "timestep": "[1] of the run's dtype",
    }
    for stream in family.streams:
        length = stream.length(config)
        shapes[stream.argument] = f"[1, {length}, {config[stream.width]}] of the run's dtype"
        if stream.masked:
            shapes[stream.mask_argument] = f"[1, {length}] of the run's dtype, 0 or 1"
    if not family.streams:
        made = make_arguments(signature, {})
        shapes |= {n: f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for n, x in made.tensors.items()}
        shapes |= {name: repr(value) for name, value in made.static.items()}
    yield f"The model: {kind.__module__.partition('.')[0]}.{kind.__name__}; for --model {model}"
    yield ""
    yield "Arguments of its forward, with a batch of one:"
    for name in (*signature.required, *signature.optional):
        optional = "" if name in signature.required else " (optional)"
        yield f"    {name}{optional}: {shapes.get(name, 'see its forward')}"
    paths = (path.split(".") for path in callable_modules(skeletal) if path)
    names = list(dict.fromkeys(".".join("N" if part.isdigit() else part for part in path) for path in paths))
    yield ""
    yield "Names of its modules, which `rename` maps yours onto (N: a block's number):"
    yield from (f"    {name}" for name in names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        yield f"    and {len(names) - MOST_NAMES} more"
