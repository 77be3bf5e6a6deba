"""The floors of a recording: what rounding does in a script's own loop, from its encoders to its last latents.

`runs` says which runs stand beside the script's own, `carried` takes them from step to step, `related` finds what the
script made of a tensor (a multiple, a part, guidance of two predictions), `prepared` and `texts` say what its image and
text encoders round by, `memory` what a scheduler remembers otherwise, and `draws` keeps the script's random numbers.
"""
