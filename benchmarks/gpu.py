"""Whether the reference works on a GPU: recorded with each kernel, diffed, and compared with torchax on the CPU.

    python benchmarks/gpu.py

The commands themselves on the tiny built-in model, without a download; it ends with 1 where one does not pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import torch

RECORD = "record --model tiny-hunyuan-video-1.5 --side reference"
AGAIN = f"{RECORD} --inputs {{0}}/flex --floors none"
COMMANDS = {
    "recorded by compiled flex_attention, with floors": f"{RECORD} {{0}}/flex",
    "recorded a second time": f"{AGAIN} {{0}}/again",
    "recorded by sdpa": f"{AGAIN} --reference attention.kernel=sdpa {{0}}/sdpa",
    "the GPU against itself": "diff {0}/flex {0}/again",
    "flex_attention against sdpa": "diff {0}/flex {0}/sdpa",
    "against torchax on the CPU": "run",
    "the same in bfloat16": "run --reference dtype=bfloat16 --candidate dtype=bfloat16",
}


def main() -> int:
    if not torch.cuda.is_available():
        print("torch sees no GPU here", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for what, words in COMMANDS.items():
            command = [sys.executable, "-m", "parity", *words.format(folder).split()]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            failed += done.returncode != 0
            print(f"{'pass' if done.returncode == 0 else 'FAIL'}: {what}", flush=True)
            if done.returncode:
                print((done.stdout + done.stderr)[-2000:])
    print(f"{len(COMMANDS) - failed} of {len(COMMANDS)} passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
