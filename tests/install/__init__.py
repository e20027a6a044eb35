"""Installing twinbus: wheels and source distributions, in environments that have nothing else.

Owns: the build of distributions from a copy of the checkout, and fresh environments that they are installed in.
`python -m tests.install` tries all combinations; `python -m tests.install.oldest` tries the oldest packages allowed.
"""
