"""Configuration files: what they say, and bringing a namespace to it.

Owns: the form of both files, the emulator's `Config.json` and our own TOML, and every error about them: each names the
file, the key and the reason. Knows nothing of the command line. What is valid in a setting, a description or a rule is
for `settings`, the model and the filters to say.
"""
